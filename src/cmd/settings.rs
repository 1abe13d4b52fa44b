//! Where a command gets its Redis, rules and prefix from: flag, environment, project file
//! (`.rlctl.toml`, here or in a folder above), user's config file, default. Both files may define
//! contexts, named sets of these settings, and say which one is used.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Exit, Failure};

pub(super) const PROJECT_FILE: &str = ".rlctl.toml";
/// No settings file is longer; something else was named by mistake.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// One file of settings.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettingsFile {
    /// The context in use.
    #[serde(rename = "use")]
    pub(super) uses: Option<String>,
    #[serde(default, rename = "context")]
    pub(super) contexts: BTreeMap<String, ContextSettings>,
    #[serde(skip)]
    pub(super) path: PathBuf,
}

/// A named set of settings.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(super) struct ContextSettings {
    pub(super) redis: Option<String>,
    pub(super) gateway: Option<Gateways>,
    pub(super) rules: Option<String>,
    pub(super) prefix: Option<String>,
    /// A command that prints the password of Redis.
    pub(super) password_command: Option<String>,
    /// Writes ask for the context's name to be typed.
    #[serde(default)]
    pub(super) protected: bool,
    /// Nothing is written.
    #[serde(default)]
    pub(super) readonly: bool,
}

/// One admin address, or several.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub(super) enum Gateways {
    One(String),
    Several(Vec<String>),
}

impl Gateways {
    pub(super) fn into_list(self) -> Vec<String> {
        match self {
            Gateways::One(one) => vec![one],
            Gateways::Several(several) => several,
        }
    }
}

/// The files as they are on this machine, the project's before the user's.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) project: Option<SettingsFile>,
    pub(super) user: Option<SettingsFile>,
    /// Where the user's file is, or would be.
    pub(super) user_path: Option<PathBuf>,
}

impl Settings {
    /// Reads the files. `folder` is where the command runs, `config_home` where programs keep their
    /// configuration.
    pub(super) fn read(folder: &Path, config_home: Option<&Path>) -> Result<Settings, Failure> {
        let project = folder.ancestors().map(|f| f.join(PROJECT_FILE)).find(|file| file.is_file());
        let user_path = config_home.map(|home| home.join("rlctl").join("config.toml"));
        let existing = user_path.clone().filter(|path| path.is_file());
        let project = project.as_deref().map(read_file).transpose()?;
        if let Some(file) = &project {
            refuse_commands(file)?;
        }
        Ok(Settings { project, user: existing.as_deref().map(read_file).transpose()?, user_path })
    }

    /// The context that is in use when none is named.
    pub(super) fn in_use(&self) -> Option<&str> {
        let files = [&self.project, &self.user];
        files.into_iter().flatten().find_map(|file| file.uses.as_deref())
    }

    pub(super) fn context(&self, name: &str) -> Result<&ContextSettings, Failure> {
        let files = [&self.project, &self.user];
        let found = files.into_iter().flatten().find_map(|file| file.contexts.get(name));
        found.ok_or_else(|| {
            let known: Vec<&str> = self.contexts().map(|(name, _, _)| name).collect();
            let known = if known.is_empty() { "there are none".into() } else { known.join(", ") };
            let next = "rlctl context use NAME chooses one";
            let what = format!("there is no context `{name}`; known: {known}; {next}");
            Failure::new(Exit::BadFile, what)
        })
    }

    /// All contexts with the file they stand in; the project's hide the user's of the same name.
    pub(super) fn contexts(&self) -> impl Iterator<Item = (&str, &ContextSettings, &Path)> {
        let project =
            self.project.iter().flat_map(|f| f.contexts.iter().map(|c| (c, f.path.as_path())));
        let user = self.user.iter().flat_map(|f| f.contexts.iter().map(|c| (c, f.path.as_path())));
        let hidden =
            |name: &String| self.project.as_ref().is_some_and(|f| f.contexts.contains_key(name));
        let user = user.filter(move |((name, _), _)| !hidden(name));
        project.chain(user).map(|((name, settings), path)| (name.as_str(), settings, path))
    }
}

fn read_file(path: &Path) -> Result<SettingsFile, Failure> {
    let bad = |why: String| Failure::new(Exit::BadFile, format!("{}: {why}", path.display()));
    let size = fs::metadata(path).map_err(|e| bad(e.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(bad(format!("{size} bytes are too many for a settings file")));
    }
    let text = fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    // What stands in the file may be a password: the place is told, and what belongs there.
    let mut file: SettingsFile = toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text[..at.min(text.len())].matches('\n').count() + 1;
        bad(format!("line {line}: {}", without_values(error.message())))
    })?;
    file.path = path.into();
    Ok(file)
}

/// A project's file comes with what somebody else wrote: nothing in it is run.
fn refuse_commands(project: &SettingsFile) -> Result<(), Failure> {
    let of = project.contexts.iter().find(|(_, context)| context.password_command.is_some());
    let Some((name, _)) = of else { return Ok(()) };
    let path = project.path.display();
    Err(Failure::new(
        Exit::BadFile,
        format!(
            "{path}: context `{name}` has a password_command; it would run on your machine, so it \
             is taken only from your own config file"
        ),
    ))
}

/// The parser quotes a value of the wrong kind: `invalid type: string "…", expected a boolean`.
fn without_values(message: &str) -> String {
    match message.rsplit_once(", expected ") {
        Some((found, expected)) if found.starts_with("invalid ") => {
            let expected = expected.replace("struct ContextSettings", "a table of settings");
            format!("expected {expected}")
        }
        _ => message.into(),
    }
}
