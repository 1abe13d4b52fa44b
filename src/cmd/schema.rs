//! `rlctl schema`: what files and output look like, for editors and scripts.

use std::sync::LazyLock;

use clap::builder::PossibleValuesParser;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Context, Exit, Failure, print};
use crate::output::schema::Document;
use crate::output::{Column, Format, List, Row};

/// Of the rules file, which is read and not printed.
const RULES: &str = include_str!("schema/rules.json");
/// Of everything that is printed, in the short form.
static OUTPUT: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("schema/output.json")).expect("it is an object")
});

/// Print the JSON Schema of a file or of what a command prints
///
/// Editors check and complete a rules file against it; scripts know from it what they get. JSON
/// Schema 2020-12. Without a name, the names there are.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl schema                                  all names
  rlctl schema check                            what rlctl check -o json prints
  rlctl schema rules > rules.schema.json        for the editor")]
pub(super) struct Args {
    /// Of what
    #[arg(value_parser = PossibleValuesParser::new(names()))]
    name: Option<String>,
}

#[derive(Serialize)]
struct Item<'a> {
    name: &'a str,
    about: &'a str,
}

impl<'a> Row for Item<'a> {
    fn columns() -> Vec<Column<Item<'a>>> {
        vec![
            Column::new("NAME", |item: &Item<'a>| item.name.into()),
            Column::new("WHAT IT IS OF", |item| item.about.into()),
        ]
    }

    const FIELDS: &'static [&'static str] = &["name", "about"];
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let Some(name) = &args.name else {
        let items: Vec<Item<'_>> = names().iter().map(|name| item(name)).collect();
        context.print_list(&List::new(&items), "")?;
        return Ok(Exit::Fine);
    };
    if context.look.format != Format::Json {
        context.refuse_output("a schema is JSON")?;
    }
    match document(name) {
        Some(document) => {
            let text = serde_json::to_string_pretty(&document.published());
            print(&(text.map_err(std::io::Error::from)? + "\n"))?;
        }
        None => print(RULES)?,
    }
    Ok(Exit::Fine)
}

fn documents() -> &'static Map<String, Value> {
    part("documents")
}

fn part(name: &str) -> &'static Map<String, Value> {
    OUTPUT.get(name).and_then(Value::as_object).expect("an object")
}

/// The rules file last: it is no output.
fn names() -> Vec<&'static str> {
    documents().keys().map(String::as_str).chain(["rules"]).collect()
}

fn item(name: &str) -> Item<'_> {
    let about = document(name).map_or("the rules file, TOML or JSON", |document| document.about);
    Item { name, about }
}

fn document(name: &str) -> Option<Document<'_>> {
    let written = documents().get(name)?;
    Some(Document {
        name,
        about: written["about"].as_str().expect("every document says what it is"),
        fields: match written["fields"].as_str() {
            Some(named) => part("defs")[named].as_object().expect("it is defined"),
            None => written["fields"].as_object().expect("every document has fields"),
        },
        item: written.get("item"),
        defs: part("defs"),
        versioned: written["versioned"].as_bool().unwrap_or(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_is_complete_and_every_reference_leads_somewhere() {
        for name in documents().keys() {
            let schema = document(name).expect("it is there").published();
            let text = schema.to_string();
            for (at, _) in text.match_indices("\"#/$defs/") {
                let named = &text[at + 9..];
                let named = &named[..named.find('"').unwrap()];
                assert!(schema["$defs"].get(named).is_some(), "{name}: {named}");
            }
        }
    }
}
