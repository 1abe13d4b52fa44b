//! `rlctl context`: named sets of settings.

use std::fs;

use serde::Serialize;

use super::settings::{ContextSettings, Gateways};
use super::{Context, Exit, Failure, print};
use crate::engine::config::without_passwords;
use crate::engine::store::redis::without_secrets;
use crate::output::{Column, List, Row, Untrusted};

/// List, choose and show named sets of settings
///
/// A context names a Redis, gateways, a rules file and a key prefix. Contexts stand in the user's config
/// file and in a project's .rlctl.toml; a flag or environment variable wins over both.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl context list
  rlctl context use staging
  rlctl --context prod check user:123 --limit 10/1m --cost 0

A file with contexts:
  use = \"staging\"
  [context.staging]
  redis = \"redis://10.0.0.5:6379\"
  gateway = \"http://10.0.0.6:9090\"
  [context.prod]
  redis = \"rediss://gateway@redis.prod:6380/0\"
  password_command = \"pass show redis/prod\"
  protected = true")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// All contexts, the one in use marked
    #[command(after_help = "\
Examples:
  rlctl context list
  rlctl context list -o json")]
    List,
    /// Choose the context that is used from now on
    #[command(after_help = "\
Examples:
  rlctl context use staging")]
    Use { name: String },
    /// One context; without a name, the settings in force
    #[command(after_help = "\
Examples:
  rlctl context show                            the settings in force
  rlctl context show prod -o json")]
    Show { name: Option<String> },
}

#[derive(Serialize)]
struct Item {
    name: String,
    in_use: bool,
    redis: Option<String>,
    gateways: Vec<String>,
    rules: Option<String>,
    prefix: Option<String>,
    protected: bool,
    readonly: bool,
    file: Option<String>,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    match args.verb {
        Verb::List => list(context),
        Verb::Use { name } => choose(&name, context),
        Verb::Show { name: Some(name) } => {
            let settings = context.settings.context(&name)?;
            show(&[item(&name, settings, context, None)], "", context)
        }
        Verb::Show { name: None } => show(&[in_force(context)], "", context),
    }
}

fn list(context: &Context) -> Result<Exit, Failure> {
    let items: Vec<Item> = context
        .settings
        .contexts()
        .map(|(name, settings, path)| {
            item(name, settings, context, Some(path.display().to_string()))
        })
        .collect();
    let place = context.settings.user_path.as_ref().map(|p| p.display().to_string());
    let place = place.unwrap_or_else(|| ".rlctl.toml".into());
    let none =
        format!("no contexts are defined; rlctl context --help shows what to write into {place}");
    show(&items, &none, context)
}

fn show(items: &[Item], none: &str, context: &Context) -> Result<Exit, Failure> {
    context.print_list(&List::new(items), none)?;
    Ok(Exit::Fine)
}

fn item(name: &str, settings: &ContextSettings, context: &Context, file: Option<String>) -> Item {
    Item {
        name: name.into(),
        in_use: context.name.as_deref() == Some(name),
        redis: settings.redis.as_deref().map(without_secrets),
        gateways: shown_gateways(
            settings.gateway.clone().map_or_else(Vec::new, Gateways::into_list),
        ),
        rules: settings.rules.clone(),
        prefix: settings.prefix.clone(),
        protected: settings.protected,
        readonly: settings.readonly,
        file,
    }
}

fn in_force(context: &Context) -> Item {
    Item {
        name: context.name.clone().unwrap_or_else(|| "-".into()),
        in_use: true,
        redis: context.redis.as_deref().map(without_secrets),
        gateways: shown_gateways(context.gateways.clone()),
        rules: context.rules.clone(),
        prefix: Some(context.prefix.as_str().into()),
        protected: context.protected,
        readonly: context.readonly,
        file: None,
    }
}

fn shown_gateways(urls: Vec<String>) -> Vec<String> {
    urls.iter().map(|url| without_passwords(url).into_owned()).collect()
}

impl Row for Item {
    fn columns() -> Vec<Column<Item>> {
        fn or_none(text: &Option<String>) -> String {
            text.clone().unwrap_or_else(|| "-".into())
        }
        let gateways =
            |item: &Item| or_none(&(!item.gateways.is_empty()).then(|| item.gateways.join(" ")));
        let flags = |item: &Item| {
            let flags = [("protected", item.protected), ("readonly", item.readonly)];
            let set = flags.into_iter().filter_map(|(name, on)| on.then_some(name));
            set.collect::<Vec<_>>().join(" ")
        };
        vec![
            Column::new("", |item: &Item| if item.in_use { "*" } else { " " }.into()),
            Column::new("NAME", |item| item.name.clone()),
            Column::new("REDIS", |item| or_none(&item.redis)),
            Column::new("GATEWAY", gateways),
            Column::new("RULES", |item| or_none(&item.rules)),
            Column::new("PREFIX", |item| or_none(&item.prefix)),
            Column::new("FLAGS", flags),
            Column::wide("FILE", |item| or_none(&item.file)),
        ]
    }

    const FIELDS: &'static [&'static str] = &[
        "name",
        "in_use",
        "redis",
        "gateways",
        "rules",
        "prefix",
        "protected",
        "readonly",
        "file",
    ];
}

/// Writes the choice into the user's file and leaves everything else in it as it was.
fn choose(name: &str, context: &Context) -> Result<Exit, Failure> {
    context.refuse_output("context use prints no data")?;
    context.settings.context(name)?;
    let path = context.settings.user_path.as_deref().ok_or_else(|| {
        Failure::new(
            Exit::Failed,
            "there is no home for a config file; set XDG_CONFIG_HOME or HOME",
        )
    })?;
    let failed = |why: String| Failure::new(Exit::Failed, format!("{}: {why}", path.display()));
    let text = if path.exists() {
        fs::read_to_string(path).map_err(|e| failed(e.to_string()))?
    } else {
        String::new()
    };
    let mut document: toml_edit::DocumentMut =
        text.parse().map_err(|_| failed("it does not parse".into()))?;
    match document.get_mut("use") {
        // Only the value, so that a comment above the key stays.
        Some(item) => *item = toml_edit::value(name),
        None => drop(document.insert("use", toml_edit::value(name))),
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|e| failed(e.to_string()))?;
    }
    // Beside it and then in its place: a full disk must not cost anybody their contexts.
    let beside = path.with_extension("toml.new");
    fs::write(&beside, document.to_string()).map_err(|e| failed(e.to_string()))?;
    fs::rename(&beside, path).map_err(|e| failed(e.to_string()))?;
    print(&format!("using {}\n", Untrusted(name)))?;
    if context.settings.project.as_ref().is_some_and(|file| file.uses.is_some()) {
        context.note("the project's .rlctl.toml says otherwise and wins in this folder");
    }
    Ok(Exit::Fine)
}
