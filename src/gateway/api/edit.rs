//! Changes to single rules in the text of a policy. In TOML comments and everything else stay as
//! they were. Pure.

use serde::Deserialize;
use serde_json::{Map, Value};
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table};

pub(super) type Fields = Map<String, Value>;

#[derive(Clone, Debug)]
pub(super) enum Edit {
    Add(Fields),
    /// The rule of that name becomes this.
    Replace(String, Fields),
    /// These fields of it become others; null takes one away.
    Patch(String, Fields),
    Remove(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EditError {
    #[error("there is no rule `{0}`")]
    Missing(String),
    #[error("there is a rule `{0}` already")]
    Exists(String),
    #[error("a rule needs a name")]
    NoName,
    #[error("the published policy cannot be read: {0}")]
    Unreadable(String),
}

/// The text after the change; whether it is a policy is for others to say.
pub(super) fn edited(text: &str, edit: &Edit) -> Result<String, EditError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Edit::Add(fields) = edit {
        let name = fields.get("name").and_then(Value::as_str).ok_or(EditError::NoName)?;
        if rules_of(text)?.iter().any(|rule| name_of(rule) == Some(name)) {
            return Err(EditError::Exists(name.into()));
        }
    }
    if is_json(text) { edited_json(text, edit) } else { edited_toml(text, edit) }
}

/// The rules of a policy, as they are written.
pub(super) fn rules_of(text: &str) -> Result<Vec<Fields>, EditError> {
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        rule: Vec<Fields>,
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let unreadable = |error: String| EditError::Unreadable(error);
    let file: File = if is_json(text) {
        serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?
    } else {
        toml::from_str(text).map_err(|error| unreadable(error.to_string()))?
    };
    Ok(file.rule)
}

pub(super) fn name_of(rule: &Fields) -> Option<&str> {
    rule.get("name").and_then(Value::as_str)
}

/// As whoever reads policies tells it.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

fn edited_json(text: &str, edit: &Edit) -> Result<String, EditError> {
    let unreadable = |why: String| EditError::Unreadable(why);
    let mut file: Fields =
        serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?;
    let rules = file.entry("rule").or_insert_with(|| Value::Array(Vec::new()));
    let rules = rules.as_array_mut().ok_or_else(|| unreadable("`rule` is no list".into()))?;
    let find = |rules: &[Value], name: &str| {
        let found = rules.iter().position(|rule| rule["name"] == name);
        found.ok_or_else(|| EditError::Missing(name.into()))
    };
    match edit {
        Edit::Add(fields) => rules.push(Value::Object(fields.clone())),
        Edit::Replace(name, fields) => {
            let place = find(rules, name)?;
            rules[place] = Value::Object(fields.clone());
        }
        Edit::Patch(name, fields) => {
            let place = find(rules, name)?;
            let Some(rule) = rules[place].as_object_mut() else {
                return Err(EditError::Missing(name.clone()));
            };
            for (key, value) in fields {
                if value.is_null() {
                    rule.remove(key);
                } else {
                    rule.insert(key.clone(), value.clone());
                }
            }
        }
        Edit::Remove(name) => {
            let place = find(rules, name)?;
            rules.remove(place);
        }
    }
    serde_json::to_string_pretty(&file).map_err(|error| unreadable(error.to_string()))
}

fn edited_toml(text: &str, edit: &Edit) -> Result<String, EditError> {
    let unreadable = |why: String| EditError::Unreadable(why);
    let mut file: DocumentMut =
        text.parse().map_err(|e: toml_edit::TomlError| unreadable(e.to_string()))?;
    // `rule = [{ … }]` becomes `[[rule]]`: one form to work on.
    let mut rules = match file.remove("rule") {
        None => ArrayOfTables::new(),
        Some(item) if item.as_array().is_some_and(toml_edit::Array::is_empty) => {
            ArrayOfTables::new()
        }
        Some(item) => item
            .into_array_of_tables()
            .map_err(|_| unreadable("`rule` is no list of tables".into()))?,
    };
    let find = |rules: &ArrayOfTables, name: &str| {
        let is_it = |rule: &Table| rule.get("name").and_then(Item::as_str) == Some(name);
        rules.iter().position(is_it).ok_or_else(|| EditError::Missing(name.into()))
    };
    match edit {
        Edit::Add(fields) => {
            let mut rule = Table::new();
            rule.decor_mut().set_prefix("\n");
            put_all(&mut rule, fields);
            rules.push(rule);
        }
        Edit::Replace(name, fields) => {
            let place = find(&rules, name)?;
            if let Some(rule) = rules.get_mut(place) {
                rule.clear();
                put_all(rule, fields);
            }
        }
        Edit::Patch(name, fields) => {
            let place = find(&rules, name)?;
            if let Some(rule) = rules.get_mut(place) {
                put_all(rule, fields);
            }
        }
        Edit::Remove(name) => {
            let place = find(&rules, name)?;
            rules.remove(place);
        }
    }
    file.insert("rule", Item::ArrayOfTables(rules));
    Ok(file.to_string())
}

/// Null takes a key away; a comment behind a value stays.
fn put_all(rule: &mut Table, fields: &Fields) {
    for (key, value) in fields {
        let Some(mut value) = toml_value(value) else {
            rule.remove(key);
            continue;
        };
        match rule.get_mut(key).and_then(Item::as_value_mut) {
            Some(old) => {
                *value.decor_mut() = old.decor().clone();
                *old = value;
            }
            None => {
                rule.insert(key, Item::Value(value));
            }
        }
    }
}

fn toml_value(value: &Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(flag) => (*flag).into(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64().unwrap_or(f64::MAX).into(),
        },
        Value::String(text) => text.into(),
        Value::Array(list) => toml_edit::Value::Array(list.iter().filter_map(toml_value).collect()),
        Value::Object(fields) => {
            let mut table = toml_edit::InlineTable::new();
            for (key, value) in fields {
                if let Some(value) = toml_value(value) {
                    table.insert(key, value);
                }
            }
            toml_edit::Value::InlineTable(table)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOML: &str = r#"# our limits
default_tier = "free" # for everybody

[[rule]] # users
name = "per-user"
dimension = "user"
limits = ["10/1s"] # agreed with sales

# addresses
[[rule]]
name = "per-ip"
dimension = "ip"
limits = ["100/1m"]

[tiers.free]
limits = ["1/1s"] # little
"#;

    fn fields(value: Value) -> Fields {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn in_toml_only_what_is_meant_changes() {
        let patch = fields(json!({"limits": ["20/1s"], "shadow": true}));
        let text = edited(TOML, &Edit::Patch("per-user".into(), patch)).unwrap();
        let wanted = TOML.replace(
            "limits = [\"10/1s\"] # agreed with sales\n",
            "limits = [\"20/1s\"] # agreed with sales\nshadow = true\n",
        );
        assert_eq!(text, wanted);
        let back = fields(json!({"limits": ["10/1s"], "shadow": null}));
        assert_eq!(edited(&text, &Edit::Patch("per-user".into(), back)).unwrap(), TOML);
        let text = edited(TOML, &Edit::Remove("per-ip".into())).unwrap();
        assert!(!text.contains("per-ip") && text.contains("# agreed with sales"), "{text}");
        assert!(text.contains("# little"), "{text}");
    }

    #[test]
    fn a_new_rule_comes_after_the_others_and_before_what_follows() {
        let rule = fields(json!({
            "name": "new", "dimension": "apikey", "cost": 2, "local_share": 0.5, "tier": null,
            "limits": ["5/1s", {"limit": "9/1h", "algorithm": "gcra"}],
        }));
        let text = edited(TOML, &Edit::Add(rule)).unwrap();
        let rules = rules_of(&text).unwrap();
        assert_eq!(
            rules.iter().filter_map(name_of).collect::<Vec<_>>(),
            ["per-user", "per-ip", "new"]
        );
        assert_eq!(rules[2]["limits"][1], json!({"limit": "9/1h", "algorithm": "gcra"}));
        assert_eq!((&rules[2]["cost"], &rules[2]["local_share"]), (&json!(2), &json!(0.5)));
        assert!(text.find("\"new\"") < text.find("[tiers.free]"), "{text}");
        assert!(text.starts_with("# our limits\n"), "{text}");
    }

    #[test]
    fn every_form_of_a_list_of_rules_can_be_changed() {
        let rule = || fields(json!({"name": "a", "dimension": "ip", "limits": ["1/1s"]}));
        for empty in ["", "rule = []", "{}", "{\"rule\": []}", "\u{feff}version = 1\n"] {
            let text = edited(empty, &Edit::Add(rule())).unwrap();
            assert_eq!(rules_of(&text).unwrap(), [rule()], "{text}");
            let other = fields(json!({"name": "a", "dimension": "user", "limits": "tier"}));
            let text = edited(&text, &Edit::Replace("a".into(), other.clone())).unwrap();
            assert_eq!(rules_of(&text).unwrap(), [other], "{text}");
            let text = edited(&text, &Edit::Remove("a".into())).unwrap();
            assert_eq!(rules_of(&text).unwrap(), Vec::<Fields>::new(), "{text}");
        }
        let inline = "rule = [{ name = \"b\", dimension = \"ip\", limits = [\"1/1s\"] }]\n[gateway]\nmax_checks = 5\n";
        let text = edited(inline, &Edit::Add(rule())).unwrap();
        assert_eq!(rules_of(&text).unwrap().len(), 2, "{text}");
    }

    #[test]
    fn what_is_not_there_or_there_already_is_told() {
        let rule = fields(json!({"name": "per-ip"}));
        assert_eq!(edited(TOML, &Edit::Add(rule)), Err(EditError::Exists("per-ip".into())));
        assert_eq!(edited(TOML, &Edit::Add(Fields::new())), Err(EditError::NoName));
        let missing = || Err(EditError::Missing("x".into()));
        for text in [TOML, "{\"rule\": [{\"name\": \"y\"}]}"] {
            assert_eq!(edited(text, &Edit::Remove("x".into())), missing());
            assert_eq!(edited(text, &Edit::Patch("x".into(), Fields::new())), missing());
        }
        assert!(matches!(
            edited("rule = 1", &Edit::Remove("x".into())),
            Err(EditError::Unreadable(_))
        ));
    }
}
