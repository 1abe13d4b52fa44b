//! JSON Schemas of what is printed, written down in a short form and published in full.
//!
//! A type is a word: `string`, `integer`, `number`, `boolean`, `any`; `a|b|c` is one of these words;
//! `$name` is a type of `defs`. With `?` after it, it may be null. What follows a blank is its
//! description. `[type]` is a list, `{…}` an object, whose name ends in `?` where it may be null;
//! the field `*` stands for any name.

use serde_json::{Map, Value, json};

use super::SCHEMA;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// One kind of document.
#[derive(Clone, Debug)]
pub struct Document<'a> {
    pub name: &'a str,
    pub about: &'a str,
    /// An object by itself, or what stands before the items.
    pub fields: &'a Map<String, Value>,
    /// Of a list.
    pub item: Option<&'a Value>,
    pub defs: &'a Map<String, Value>,
    /// Whether it says which version of the output it follows.
    pub versioned: bool,
}

impl Document<'_> {
    /// The schema in full.
    pub fn published(&self) -> Value {
        let mut properties = Map::new();
        if self.versioned {
            properties.insert("schema".into(), json!({ "const": SCHEMA }));
        }
        properties.extend(self.fields.iter().map(|(name, form)| field(name, form)));
        let mut defs: Map<String, Value> =
            self.defs.iter().map(|(name, form)| (name.clone(), of(form))).collect();
        if let Some(form) = self.item {
            let about = "With -o ndjson each of them is a line, with the field schema before it.";
            let items = json!({
                "type": "array", "items": { "$ref": "#/$defs/item" }, "description": about,
            });
            properties.insert("items".into(), items);
            defs.insert("item".into(), of(form));
        }
        let mut schema = object(properties);
        let whole = [
            ("$schema", json!(DIALECT)),
            ("$id", json!(format!("urn:rlctl:v1:{}", self.name))),
            ("title", json!(self.name)),
            ("description", json!(self.about)),
            ("$defs", Value::Object(used(&defs, &schema))),
        ];
        for (name, value) in whole {
            schema[name] = value;
        }
        schema
    }
}

/// Those definitions that are named, also by each other.
fn used(defs: &Map<String, Value>, schema: &Value) -> Map<String, Value> {
    let mut used = Map::new();
    let mut texts = vec![schema.to_string()];
    while let Some(text) = texts.pop() {
        for (name, value) in defs {
            let named = text.contains(&format!("\"#/$defs/{name}\""));
            if named && !used.contains_key(name) {
                texts.push(value.to_string());
                used.insert(name.clone(), value.clone());
            }
        }
    }
    used
}

fn object(properties: Map<String, Value>) -> Value {
    let required: Vec<String> = properties.keys().cloned().collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

fn field(name: &str, form: &Value) -> (String, Value) {
    match name.strip_suffix('?') {
        Some(name) => (name.into(), json!({ "anyOf": [of(form), { "type": "null" }] })),
        None => (name.into(), of(form)),
    }
}

fn of(form: &Value) -> Value {
    match form {
        Value::Object(fields) => match fields.get("*") {
            Some(any) => json!({ "type": "object", "additionalProperties": of(any) }),
            None => object(fields.iter().map(|(name, form)| field(name, form)).collect()),
        },
        Value::Array(items) => {
            json!({ "type": "array", "items": items.first().map_or(json!({}), of) })
        }
        Value::String(text) => word(text),
        _ => json!({}),
    }
}

fn word(text: &str) -> Value {
    let (kind, about) = text.split_once(' ').unwrap_or((text, ""));
    let (kind, is_optional) = match kind.strip_suffix('?') {
        Some(kind) => (kind, true),
        None => (kind, false),
    };
    let mut schema = match kind {
        "any" => json!({}),
        name if name.starts_with('$') => {
            let named = json!({ "$ref": format!("#/$defs/{}", &name[1..]) });
            if is_optional { json!({ "anyOf": [named, { "type": "null" }] }) } else { named }
        }
        words if words.contains('|') => {
            let mut choices: Vec<Value> = words.split('|').map(|word| json!(word)).collect();
            choices.extend(is_optional.then_some(Value::Null));
            json!({ "enum": choices })
        }
        kind if is_optional => json!({ "type": [kind, "null"] }),
        kind => json!({ "type": kind }),
    };
    if !about.is_empty() {
        schema["description"] = json!(about);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_says_what_the_full_one_says() {
        let defs = json!({ "pair": { "a": "integer" }, "unused": "string" });
        let fields = json!({ "of": "$pair?", "how": "open|closed? a mode" });
        let document = Document {
            name: "x",
            about: "An x",
            fields: fields.as_object().unwrap(),
            item: Some(&json!({ "tags": ["string"], "rest?": { "*": "number" } })),
            defs: defs.as_object().unwrap(),
            versioned: true,
        };
        let schema = document.published();
        let how = json!({ "enum": ["open", "closed", null], "description": "a mode" });
        assert_eq!(schema["properties"]["how"], how);
        assert_eq!(schema["properties"]["of"]["anyOf"][0]["$ref"], "#/$defs/pair");
        assert_eq!(schema["required"], json!(["how", "items", "of", "schema"]));
        assert_eq!(schema["$defs"]["item"]["required"], json!(["rest", "tags"]));
        assert!(schema["$defs"].get("unused").is_none());
    }
}
