//! What the commands that look at or change stored quota share: whom they are about, the layout it
//! is kept in, the way to the servers, and being sure.

use std::io::{self, BufRead, IsTerminal, Write};
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::{Context, Exit, Failure, OPERATOR_DEADLINE};
use crate::engine::identity::Identity;
use crate::engine::limit::Quota;
use crate::engine::store::redis::Deployment;
use crate::engine::units;
use crate::ops::admin::Admin;
use crate::ops::dialect::{Dialect, DialectError};
use crate::ops::layout::Layout;

/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// `--dialect` and `--limit`.
#[derive(Debug, clap::Args)]
pub(super) struct DialectArgs {
    /// The layout of a limiter that is not ours: `shipped` for all that are known, one of them by
    /// its name, or a file that describes it (docs/dialects.md)
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) dialect: Option<String>,
    /// The limit of that limiter, where its layout does not say it: 100/1m
    #[arg(long, value_name = "L/P")]
    pub(super) limit: Option<Quota>,
}

impl DialectArgs {
    /// The layouts that are meant: ours, unless a dialect is named.
    pub(super) fn layouts(&self, context: &Context) -> Result<Vec<Layout>, Failure> {
        match (&self.dialect, self.limit) {
            (Some(_), _) => Ok(self.foreign()?),
            (None, Some(_)) => Err(Failure::usage(
                "--limit says the limit of another limiter: give --dialect, too; ours says its own",
            )),
            (None, None) => Ok(vec![Layout::Own(context.prefix.clone())]),
        }
    }

    /// Those of the dialect, or all that are shipped.
    pub(super) fn foreign(&self) -> Result<Vec<Layout>, Failure> {
        let mut dialect = Dialect::load(self.dialect.as_deref().unwrap_or("shipped"))?;
        if let Some(quota) = self.limit {
            dialect = dialect.with_quota(quota).map_err(Failure::usage)?;
        }
        Ok(dialect.layouts.into_iter().map(|layout| Layout::Foreign(Box::new(layout))).collect())
    }
}

impl From<DialectError> for Failure {
    fn from(error: DialectError) -> Failure {
        let exit = match error {
            DialectError::Unknown { .. } => Exit::Usage,
            _ => Exit::BadFile,
        };
        Failure::new(exit, error)
    }
}

/// An identity, or `-` for those on stdin.
#[derive(Clone, Debug)]
pub(super) enum Who {
    One(Identity),
    Stdin,
}

impl FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> Result<Who, String> {
        match text {
            "-" => Ok(Who::Stdin),
            text => text.parse().map(Who::One).map_err(|error| format!("{error}")),
        }
    }
}

/// `--rows`: none would read as if there were nothing.
pub(super) fn most_rows(text: &str) -> Result<usize, String> {
    match units::parse_count(text).map_err(|error| error.to_string())? {
        0 => Err("write how many rows to show, at least 1".into()),
        rows => usize::try_from(rows).map_err(|error| error.to_string()),
    }
}

/// One identity after the other; those of stdin as they come, one a line.
pub(super) fn identities(who: Vec<Who>) -> impl Iterator<Item = Result<Identity, Failure>> {
    who.into_iter().flat_map(|who| -> Box<dyn Iterator<Item = Result<Identity, Failure>>> {
        match who {
            Who::One(identity) => Box::new(std::iter::once(Ok(identity))),
            Who::Stdin => Box::new(io::stdin().lock().lines().enumerate().filter_map(of_line)),
        }
    })
}

fn of_line((number, line): (usize, io::Result<String>)) -> Option<Result<Identity, Failure>> {
    let line = match line {
        Ok(line) => line,
        Err(error) => return Some(Err(Failure::new(Exit::BadFile, format!("stdin: {error}")))),
    };
    let text = line.trim();
    let wrong = |error| Failure::usage(format!("stdin, line {}: {error}", number + 1));
    (!text.is_empty()).then(|| text.parse().map_err(wrong))
}

impl Context {
    /// All servers of the Redis.
    pub(super) async fn deployment(&self) -> Result<Deployment, Failure> {
        let Some(url) = &self.redis else {
            return Err(Failure::usage(
                "what is used lies in a Redis; say in which one with --redis URL or RLCTL_REDIS",
            ));
        };
        let options = self.options(url, OPERATOR_DEADLINE)?;
        Ok(Deployment::connect(&options.address, OPERATOR_DEADLINE).await?)
    }

    /// Every gateway that is known.
    pub(super) fn all_gateways(&self) -> Result<Vec<Admin>, Failure> {
        self.gateways.iter().map(|url| self.gateway(url)).collect()
    }

    /// Asks whether to go on, with the plan before everybody's eyes. Where nobody can be asked,
    /// only `--yes` goes on.
    pub(super) fn confirm(&self, yes: bool, question: &str) -> Result<(), Failure> {
        if yes {
            return Ok(());
        }
        let refused = |why: &str| Err(Failure::new(Exit::Refused, why));
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return refused("nothing was changed: there is no terminal to ask on; add --yes");
        }
        write!(io::stderr(), "{question} [y/N] ")?;
        let mut typed = String::new();
        io::stdin().read_line(&mut typed)?;
        match typed.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => refused("nothing was changed"),
        }
    }
}

/// A line on a terminal that says how far something has come, and is gone at the end.
pub(super) struct Progress<'a> {
    context: &'a Context,
    last: Option<Instant>,
    shown: bool,
}

impl<'a> Progress<'a> {
    pub(super) fn new(context: &'a Context) -> Progress<'a> {
        Progress { context, last: None, shown: false }
    }

    pub(super) fn tell(&mut self, text: impl FnOnce() -> String) {
        let is_due = self.last.is_none_or(|last| last.elapsed() > PROGRESS_EVERY);
        if self.context.progress && is_due {
            // The first line waits: what is done at once needs none.
            if self.last.replace(Instant::now()).is_some() {
                let _ = write!(io::stderr(), "\r\u{1b}[K{}", text());
                self.shown = true;
            }
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\u{1b}[K");
        }
    }
}
