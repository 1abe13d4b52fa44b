//! The password of Redis, where the URL has none: asked for when it is needed, and never shown.

use std::sync::OnceLock;

use super::{Exit, Failure};

/// Where to get it.
#[derive(Debug)]
pub(super) enum Source {
    File(String),
    /// `REDISCLI_AUTH` itself.
    Given(String),
    /// A context's command. It is the password of that context's Redis and of no other.
    Command {
        command: String,
        redis: Option<String>,
    },
    Nowhere,
}

#[derive(Debug)]
pub(super) struct Password {
    source: Source,
    /// A command may ask a person: once is enough.
    known: OnceLock<String>,
}

impl Password {
    pub(super) fn from(source: Source) -> Password {
        Password { source, known: OnceLock::new() }
    }

    /// The password to give to the Redis at `url`.
    pub(super) fn of(&self, url: &str) -> Result<Option<String>, Failure> {
        if let Source::Command { redis, .. } = &self.source
            && redis.as_deref() != Some(url)
        {
            return Ok(None);
        }
        if let Some(known) = self.known.get() {
            return Ok(Some(known.clone()));
        }
        let password = match &self.source {
            Source::File(path) => read_password(path)?,
            Source::Given(password) => password.clone(),
            Source::Command { command, .. } => run_password_command(command)?,
            Source::Nowhere => return Ok(None),
        };
        Ok(Some(self.known.get_or_init(|| password).clone()))
    }
}

fn read_password(path: &str) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        Failure::new(Exit::BadFile, format!("cannot read RLCTL_REDIS_PASSWORD_FILE `{path}`: {e}"))
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).into())
}

/// The first line of what the command prints; nothing of it is ever shown.
fn run_password_command(command: &str) -> Result<String, Failure> {
    let failed =
        |why: String| Failure::new(Exit::Failed, format!("password_command failed: {why}"));
    let output = std::process::Command::new("sh")
        .args(["-c", command])
        .stderr(std::process::Stdio::inherit())
        .output();
    let output = output.map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    let text = String::from_utf8(output.stdout).map_err(|_| failed("it printed no text".into()))?;
    Ok(text.lines().next().unwrap_or_default().into())
}
