//! CSV that a spreadsheet shows and does not obey.

use std::io::{self, Write};

use serde::Serialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::Untrusted;
use super::untrusted::json_line;

/// Writes one record.
pub(super) fn write_row(
    out: &mut impl Write,
    cells: impl Iterator<Item = String>,
) -> io::Result<()> {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    writer.write_record(cells)?;
    out.write_all(&writer.into_inner().map_err(|error| error.into_error())?)
}

/// The named fields of an object, in that order.
pub(super) fn cells(row: &impl Serialize, fields: &[&str]) -> io::Result<Vec<String>> {
    let object = serde_json::to_value(row)?;
    let field = |name: &&str| {
        debug_assert!(object.get(*name).is_some(), "{name} is no field of {object}");
        cell(object.get(*name).unwrap_or(&Value::Null))
    };
    Ok(fields.iter().map(field).collect())
}

/// One object as a header and one record: its fields in their order.
pub fn one(object: &impl Serialize) -> io::Result<String> {
    let text = serde_json::to_string(object)?;
    let mut fields = serde_json::Deserializer::from_str(&text).deserialize_map(InOrder)?;
    fields.retain(|(name, _)| name != "schema");
    let mut out = Vec::new();
    write_row(&mut out, fields.iter().map(|(name, _)| name.clone()))?;
    write_row(&mut out, fields.iter().map(|(_, value)| cell(value)))?;
    String::from_utf8(out).map_err(io::Error::other)
}

/// The fields of an object as they were written.
struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Vec<(String, Value)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(fields)
    }
}

/// Nothing for null; lists and objects as JSON. Text that a spreadsheet would compute gets a quote
/// before it; numbers of ours may be negative.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(_) | Value::Object(_) => json_line(value),
        Value::String(text) => {
            let shown = Untrusted(text).to_string();
            let is_obeyed = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
            if is_obeyed { format!("'{shown}") } else { shown }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_spreadsheet_computes_nothing() {
        for (value, shown) in [
            (json!("=1+1"), "'=1+1"),
            (json!("@SUM(A1)"), "'@SUM(A1)"),
            (json!("+1"), "'+1"),
            (json!("-1"), "'-1"),
            (json!("\t=1"), "'\\u{9}=1"),
            (json!(-1), "-1"),
            (json!(null), ""),
            (json!(true), "true"),
            (json!("a\u{1b}[2J"), "a\\u{1b}[2J"),
            (json!(["=1"]), "[\"=1\"]"),
        ] {
            assert_eq!(cell(&value), shown);
        }
    }

    #[test]
    fn fields_keep_their_order_and_cells_their_commas() {
        #[derive(Serialize)]
        struct Z {
            schema: &'static str,
            z: &'static str,
            a: u8,
        }
        let text = one(&Z { schema: "s", z: "1, \"2\"", a: 3 }).unwrap();
        assert_eq!(text, "z,a\n\"1, \"\"2\"\"\",3\n");
    }
}
