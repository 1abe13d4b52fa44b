//! The JSON Schema of scenario files, made from the same description that reads them.

use serde_json::{Map, Value, json};

use super::format::{self, TABLES};
use crate::engine::config::read::{Shape, TableShape};

pub fn schema() -> Value {
    let mut defs = Map::new();
    let mut more: Vec<&TableShape> = Vec::new();
    for table in TABLES.iter().filter(|table| !table.name.is_empty()) {
        defs.insert(table.name.into(), object(table, &mut more));
    }
    let mut root = object(&format::FILE, &mut more);
    for table in more {
        if !defs.contains_key(table.name) {
            let described = object(table, &mut Vec::new());
            defs.insert(table.name.into(), described);
        }
    }
    if let Value::Object(root) = &mut root {
        root.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
        root.insert("title".into(), json!("rlctl scenario"));
        root.insert("$defs".into(), Value::Object(defs));
    }
    root
}

fn object<'s>(table: &'s TableShape, more: &mut Vec<&'s TableShape>) -> Value {
    let mut properties = Map::new();
    for field in table.fields {
        let mut described = shape(&field.shape, more);
        if let Value::Object(described) = &mut described {
            described.insert("description".into(), json!(format!("e.g. {}", field.example)));
        }
        properties.insert(field.key.into(), described);
    }
    let required: Vec<&str> =
        table.fields.iter().filter(|field| field.required).map(|field| field.key).collect();
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": required,
        "properties": properties,
    })
}

fn shape<'s>(shape_: &'s Shape, more: &mut Vec<&'s TableShape>) -> Value {
    match shape_ {
        Shape::Any => json!({}),
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Count(range) => {
            json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
        }
        Shape::Ratio => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        Shape::Duration(..) => {
            json!({ "type": "string", "pattern": "^([0-9.]+(us|ms|s|m|h|d|w))+$" })
        }
        Shape::Text | Shape::Time | Shape::Url | Shape::HeaderName => {
            json!({ "type": "string", "minLength": 1 })
        }
        Shape::Name => json!({ "type": "string", "pattern": "^[a-z0-9-]{1,64}$" }),
        Shape::Path => json!({ "type": "string", "pattern": "^/" }),
        Shape::Choice(choices) => json!({ "enum": choices }),
        Shape::List(each) => json!({ "type": "array", "items": shape(each, more) }),
        Shape::Table(table) => {
            more.push(table);
            json!({ "$ref": format!("#/$defs/{}", table.name) })
        }
        Shape::Map(each) => json!({ "type": "object", "additionalProperties": shape(each, more) }),
        Shape::Named(table) => {
            more.push(table);
            let each = json!({ "$ref": format!("#/$defs/{}", table.name) });
            json!({ "type": "object", "additionalProperties": each })
        }
        Shape::Either("keys") => json!({ "anyOf": [
            { "type": "string" },
            { "type": "array", "items": { "type": "string" }, "minItems": 1 },
            { "$ref": "#/$defs/keys" },
        ] }),
        Shape::Either(_) => json!({}),
    }
}
