//! `rlctl scenario`: rate-limit behaviour as a test that never flakes.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::Serialize;

use super::rules::{Item, LintHead};
use super::rules_file::print_findings;
use super::scenario_run::{self, RunArgs};
use super::{Context, Exit, Failure, print};
use crate::engine::clock::Micros;
use crate::engine::config::{ConfigErrors, Finding};
use crate::output::{Column, Format, List, Row, SCHEMA, Untrusted};
use crate::scenario::{self, LoadError, Scenario, explain, files, schema};

/// Run rate-limit behaviour as a test: traffic, limiters, faults, and what must be true
///
/// Minutes of traffic and a dead Redis in milliseconds, on the code that serves, the same on every
/// machine. docs/scenarios.md has the format; scenarios/ has some to start from.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl scenario init burst.toml                a scenario to start from
  rlctl scenario run burst.toml                 exit 4 when something is not as expected
  rlctl scenario run scenarios/ --report junit=report.xml
  rlctl scenario explain burst.toml             in words, before it runs
  rlctl scenario check scenarios/               what is wrong in the files, and where
  rlctl scenario schema > scenario.schema.json  for editors")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(RunArgs),
    /// Check scenarios: everything that is wrong in the files, and where
    ///
    /// Exit 0 when they can be run, 3 when one cannot. With -o json all findings go to stdout.
    #[command(after_help = "\
Examples:
  rlctl scenario check scenarios/
  rlctl scenario check burst.toml -o json")]
    Check(PathArgs),
    /// List scenarios: names, how long they run, how much they expect
    #[command(after_help = "\
Examples:
  rlctl scenario list scenarios/
  rlctl scenario list scenarios/ -o json")]
    List(PathArgs),
    /// Explain scenarios in words, with a timeline, before they run
    #[command(after_help = "\
Examples:
  rlctl scenario explain scenarios/boundary-burst.toml
  rlctl scenario explain scenarios/ -o json")]
    Explain(PathArgs),
    Schema(SchemaArgs),
    Init(InitArgs),
}

// Its doc comment would be the help of every command that has it.
#[derive(Debug, clap::Args)]
struct PathArgs {
    /// Scenario files, TOML or JSON, or folders of them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

/// Print the JSON Schema of scenario files, for editors
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl scenario schema > scenario.schema.json  files begin with #:schema")]
struct SchemaArgs {}

/// Write a scenario to start from
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl scenario init
  rlctl scenario init scenarios/checkout.toml")]
struct InitArgs {
    /// Where; nothing is overwritten
    #[arg(value_name = "FILE", default_value = "scenario.toml")]
    file: PathBuf,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    match args.verb {
        Verb::Run(args) => scenario_run::run(args, context).await,
        Verb::Check(args) => check(&args.paths, context),
        Verb::List(args) => list(&args.paths, context),
        Verb::Explain(args) => explain_all(&args.paths, context),
        Verb::Schema(SchemaArgs {}) => {
            if context.look.format != Format::Json {
                context.refuse_output("a schema is JSON")?;
            }
            let text = serde_json::to_string_pretty(&schema::schema()).map_err(io::Error::from)?;
            print(&(text + "\n")).map(|()| Exit::Fine)
        }
        Verb::Init(args) => init(&args.file, context),
    }
}

/// What a file gave: scenarios with warnings, or what is wrong.
type Loaded = (PathBuf, Result<(Vec<Scenario>, Vec<Finding>), LoadError>);

/// Reads everything that the paths mean, and that is `wanted`.
fn load_all(paths: &[PathBuf], wanted: impl Fn(&Path) -> bool) -> Result<Vec<Loaded>, Failure> {
    let mut loaded = Vec::new();
    for path in paths {
        let mut found = files::find(path).map_err(|why| Failure::new(Exit::BadFile, why))?;
        found.retain(|file| wanted(file));
        if found.is_empty() {
            let what =
                format!("there are no scenarios in {}; see rlctl scenario init", path.display());
            return Err(Failure::new(Exit::NothingMatched, what));
        }
        for file in found {
            let read = scenario::load(&file);
            loaded.push((file, read));
        }
    }
    Ok(loaded)
}

/// The scenarios of all `wanted` files, with warnings, or a failure after everything wrong was said.
pub(super) fn usable(
    paths: &[PathBuf],
    wanted: impl Fn(&Path) -> bool,
) -> Result<(Vec<Scenario>, Vec<Finding>), Failure> {
    let (mut scenarios, mut warnings, mut is_bad) = (Vec::new(), Vec::new(), false);
    for (_, read) in load_all(paths, wanted)? {
        match read {
            Ok((some, found)) => {
                scenarios.extend(some);
                warnings.extend(found);
            }
            Err(error) => {
                is_bad = true;
                say(error);
            }
        }
    }
    // Everything is said by now.
    if is_bad { Err(Failure::new(Exit::BadFile, "")) } else { Ok((scenarios, warnings)) }
}

fn say(error: LoadError) {
    match error {
        LoadError::Bad(errors) => print_findings(&Err(errors)),
        LoadError::Unreadable(why) => {
            // Whoever closed stderr does not want to know.
            let _ = writeln!(io::stderr(), "rlctl: {}", Untrusted(&why));
        }
    }
}

fn check(paths: &[PathBuf], context: &Context) -> Result<Exit, Failure> {
    let people = context.look.format.is_for_people();
    let (mut errors, mut warnings, mut found) = (0, 0, Vec::new());
    for (file, read) in load_all(paths, |_| true)? {
        let verdict = match read {
            Ok((scenarios, some)) => {
                warnings += some.len();
                let cases: usize = scenarios.iter().map(|s| s.expectations.len()).sum();
                if people {
                    print_findings(&Err(ConfigErrors { errors: some.clone(), more: 0 }));
                }
                found.extend(some);
                format!("fine, {cases} to expect")
            }
            Err(LoadError::Bad(wrong)) => {
                let count = wrong.errors.len() + wrong.more;
                errors += count;
                found.extend(wrong.errors.iter().cloned());
                if people {
                    say(LoadError::Bad(wrong));
                }
                format!("{count} error{}", if count == 1 { "" } else { "s" })
            }
            Err(LoadError::Unreadable(why)) => {
                errors += 1;
                say(LoadError::Unreadable(why));
                "cannot be read".into()
            }
        };
        if people {
            print(&format!("{}: {verdict}\n", Untrusted(&file.display().to_string())))?;
        }
    }
    if !people {
        let items: Vec<Item<'_>> = found.iter().map(Item::of).collect();
        context.print_list(&List::new(&items).head(&LintHead { errors, warnings }), "")?;
    }
    Ok(if errors > 0 { Exit::BadFile } else { Exit::Fine })
}

#[derive(Serialize)]
struct Listed {
    file: String,
    name: String,
    description: Option<String>,
    tags: Vec<String>,
    run_us: u64,
    seed: u64,
    limiters: Vec<String>,
    expectations: usize,
}

impl Row for Listed {
    fn columns() -> Vec<Column<Listed>> {
        vec![
            Column::new("FILE", |row: &Listed| row.file.clone()),
            Column::new("NAME", |row| row.name.clone()),
            Column::number("RUN", |row| Micros(row.run_us).to_string()),
            Column::number("EXPECTS", |row| row.expectations.to_string()),
            Column::new("TAGS", |row| row.tags.join(", ")),
            Column::wide("LIMITERS", |row| row.limiters.join(", ")),
        ]
    }

    const FIELDS: &'static [&'static str] =
        &["file", "name", "description", "tags", "run_us", "seed", "limiters", "expectations"];
}

fn list(paths: &[PathBuf], context: &Context) -> Result<Exit, Failure> {
    let of = |scenario: &Scenario| Listed {
        file: scenario.file.display().to_string(),
        name: scenario.title(),
        description: scenario.description.clone(),
        tags: scenario.tags.clone(),
        run_us: scenario.run.0,
        seed: scenario.seed,
        limiters: scenario.limiters.iter().map(|limiter| limiter.name.clone()).collect(),
        expectations: scenario.expectations.len(),
    };
    let items: Vec<Listed> = usable(paths, |_| true)?.0.iter().map(of).collect();
    context.print_list(&List::new(&items), "").map(|()| Exit::Fine)
}

#[derive(Serialize)]
struct Explained {
    file: String,
    name: String,
    text: String,
}

impl Row for Explained {
    /// People get the text itself.
    fn columns() -> Vec<Column<Explained>> {
        Vec::new()
    }

    const FIELDS: &'static [&'static str] = &["file", "name", "text"];
}

fn explain_all(paths: &[PathBuf], context: &Context) -> Result<Exit, Failure> {
    let of = |scenario: &Scenario| Explained {
        file: scenario.file.display().to_string(),
        name: scenario.title(),
        text: explain::explain(scenario),
    };
    let items: Vec<Explained> = usable(paths, |_| true)?.0.iter().map(of).collect();
    if context.look.format.is_for_people() {
        let texts: Vec<&str> = items.iter().map(|item| item.text.as_str()).collect();
        return print(&texts.join("\n")).map(|()| Exit::Fine);
    }
    context.print_list(&List::new(&items), "").map(|()| Exit::Fine)
}

const STARTER: &str = include_str!("scenario_starter.toml");

fn init(file: &Path, context: &Context) -> Result<Exit, Failure> {
    let shown = file.display();
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let created = OpenOptions::new().write(true).create_new(true).open(file);
    let mut created = created.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::new(Exit::Refused, format!("{shown} exists; name another file"))
        }
        _ => Failure::new(Exit::Failed, format!("cannot write {shown}: {error}")),
    })?;
    created.write_all(STARTER.as_bytes())?;
    let written = Written { schema: SCHEMA, file: shown.to_string() };
    context.print_one(&written, || {
        let shown = Untrusted(&written.file).to_string();
        format!("wrote {shown}; try rlctl scenario run {shown}\n")
    })?;
    Ok(Exit::Fine)
}

#[derive(Serialize)]
struct Written {
    schema: &'static str,
    file: String,
}
