//! A walker of JSON Schemas, for what the tool and its gateway publish.

use serde_json::{Map, Value};

/// What a `$ref` means.
pub(crate) fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => {
            let found = document.pointer(reference.trim_start_matches('#'));
            resolve(document, found.unwrap_or_else(|| panic!("{reference} leads nowhere")))
        }
        None => value,
    }
}

/// What in `value` is not as `schema` says, if anything.
pub(crate) fn misfit(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    let schema = resolve(document, schema);
    if let Some(several) = schema["oneOf"].as_array() {
        let fitting = several.iter().filter(|one| misfit(document, one, value, at).is_none());
        let fitting = fitting.count();
        return (fitting != 1).then(|| format!("{at}: fits {fitting} of oneOf: {value}"));
    }
    if let Some(several) = schema["anyOf"].as_array() {
        let why: Vec<_> = several.iter().map(|one| misfit(document, one, value, at)).collect();
        return why.iter().all(Option::is_some).then(|| format!("{at}: fits none: {why:?}"));
    }
    if let Some(only) = schema.get("const")
        && value != only
    {
        return Some(format!("{at}: {value} is not {only}"));
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is = |name: &str| match name {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        other => panic!("{at}: unknown type {other}"),
    };
    if !types.is_empty() && !types.iter().any(|name| is(name)) {
        return Some(format!("{at}: {value} is not {types:?}"));
    }
    if let Some(choices) = schema["enum"].as_array()
        && !choices.contains(value)
    {
        return Some(format!("{at}: {value} is not among {choices:?}"));
    }
    if let Some(items) = value.as_array() {
        let each = items.iter().enumerate();
        return each
            .filter(|_| schema.get("items").is_some())
            .find_map(|(n, item)| misfit(document, &schema["items"], item, &format!("{at}[{n}]")));
    }
    value.as_object().and_then(|fields| misfit_fields(document, schema, fields, at))
}

fn misfit_fields(
    document: &Value,
    schema: &Value,
    fields: &Map<String, Value>,
    at: &str,
) -> Option<String> {
    let required = schema["required"].as_array().into_iter().flatten();
    if let Some(missing) = required.filter_map(Value::as_str).find(|key| !fields.contains_key(*key))
    {
        return Some(format!("{at}: {missing} is missing"));
    }
    fields.iter().find_map(|(key, value)| {
        let at = format!("{at}.{key}");
        match (schema["properties"].get(key), &schema["additionalProperties"]) {
            (Some(schema), _) => misfit(document, schema, value, &at),
            (None, Value::Bool(false)) => Some(format!("{at} is not told of")),
            (None, Value::Object(_)) => {
                misfit(document, &schema["additionalProperties"], value, &at)
            }
            _ => None,
        }
    })
}

/// The same schema with nothing allowed that it does not tell of.
pub(crate) fn closed(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let mut fields: Map<String, Value> =
                fields.iter().map(|(name, value)| (name.clone(), closed(value))).collect();
            let is_object = fields.get("type").is_some_and(|kind| kind == "object");
            if is_object && !fields.contains_key("additionalProperties") {
                fields.insert("additionalProperties".into(), false.into());
            }
            Value::Object(fields)
        }
        Value::Array(items) => items.iter().map(closed).collect(),
        other => other.clone(),
    }
}
