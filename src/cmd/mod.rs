//! The command line: one file per command, each with its arguments, what it does and what it
//! prints. This file has what they share, and is the one place that prints errors.

mod check;
mod demo;
mod limit_args;
mod rules;
mod rules_file;
mod schema;
mod simulate;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::engine::clock::Micros;
use crate::engine::store::keys::{DEFAULT_PREFIX, Prefix};
use crate::engine::store::redis::{RedisAddress, RedisOptions};
use crate::engine::store::{RedisStore, StoreError};
use crate::output::Untrusted;

/// An operator waits longer than a request does.
const OPERATOR_DEADLINE: Micros = Micros(2 * Micros::SECOND.0);

/// Operate and test rate limiters.
#[derive(Debug, Parser)]
#[command(name = "rlctl", version, propagate_version = true, subcommand_required = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  rlctl demo                                         six algorithms meet the same burst
  rlctl check user:123 --limit 10/1m                 a decision, remembered by nobody
  rlctl check user:123 --limit 10/1m --redis redis://127.0.0.1:6379
  rlctl simulate --limit 100/1m --algorithm all --trace requests.csv
  rlctl rules lint rules.toml                        what is wrong in it, and where

Exit codes: 0 fine, 1 failed, 2 usage, 3 bad file, 5 cannot reach Redis, 8 the answer is no,
130 interrupted.";

#[derive(Debug, clap::Args)]
struct Global {
    /// Redis to work on: redis://[user:pass@]host:port/db, rediss://…, redis+unix:///path
    /// [env: RLCTL_REDIS]
    #[arg(long, global = true, value_name = "URL")]
    redis: Option<String>,
    /// Rules file, TOML or JSON [env: RLCTL_RULES]
    #[arg(long, global = true, value_name = "FILE")]
    rules: Option<String>,
    /// Start of every key in Redis
    #[arg(long, global = true, value_name = "P", default_value = DEFAULT_PREFIX, value_parser = Prefix::new)]
    prefix: Prefix,
    /// Form of the output
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// No notes and no progress on stderr
    #[arg(short, long, global = true)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// One object, with "schema": "rlctl/v1"
    Json,
}

/// Every command once: its name, its arguments, its file.
macro_rules! commands {
    ($($name:ident => $file:ident),+ $(,)?) => {
        #[derive(Debug, Subcommand)]
        enum Command { $($name($file::Args)),+ }

        impl Command {
            async fn run(self, context: &Context) -> Result<Exit, Failure> {
                match self { $(Command::$name(args) => $file::run(args, context).await),+ }
            }
        }
    };
}

commands! {
    Check => check,
    Demo => demo,
    Rules => rules,
    Schema => schema,
    Simulate => simulate,
}

/// How the process ends; the numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Fine = 0,
    Failed = 1,
    Usage = 2,
    BadFile = 3,
    Unreachable = 5,
    AnswerIsNo = 8,
    Interrupted = 130,
}

/// Why a command could not do what was asked, and what to type next.
#[derive(Debug)]
struct Failure {
    exit: Exit,
    what: String,
}

impl Failure {
    fn new(exit: Exit, what: impl ToString) -> Failure {
        Failure { exit, what: what.to_string() }
    }

    fn usage(what: impl ToString) -> Failure {
        Failure::new(Exit::Usage, what)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let exit = match error {
            StoreError::Unreachable { .. }
            | StoreError::Timeout { .. }
            | StoreError::Lost { .. }
            | StoreError::Refused { .. }
            | StoreError::Overloaded { .. } => Exit::Unreachable,
            StoreError::OtherCost => Exit::Usage,
        };
        Failure::new(exit, error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        // A reader that has seen enough is not a failure of ours: `rlctl … | head` ends quietly.
        let quiet = error.kind() == io::ErrorKind::BrokenPipe;
        let what = if quiet { String::new() } else { format!("cannot write: {error}") };
        Failure::new(if quiet { Exit::Fine } else { Exit::Failed }, what)
    }
}

/// What a command knows of the world: read once, here, and nowhere else.
#[derive(Debug)]
struct Context {
    redis: Option<String>,
    redis_password: Option<String>,
    rules: Option<String>,
    prefix: Prefix,
    output: Output,
    quiet: bool,
    /// Whether somebody watches stderr.
    progress: bool,
}

impl Context {
    fn new(global: Global) -> Result<Context, Failure> {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let redis_password = match text("RLCTL_REDIS_PASSWORD_FILE") {
            Some(path) => Some(read_password(&path)?),
            None => text("REDISCLI_AUTH"),
        };
        Ok(Context {
            redis: global.redis.or_else(|| text("RLCTL_REDIS")),
            redis_password,
            rules: global.rules.or_else(|| text("RLCTL_RULES")),
            prefix: global.prefix,
            output: global.output,
            quiet: global.quiet,
            progress: !global.quiet && io::stderr().is_terminal(),
        })
    }

    /// Something worth knowing that is not the result.
    fn note(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            // Whoever closed stderr does not want to know.
            let _ = writeln!(io::stderr(), "note: {text}");
        }
    }

    /// The rules file to work on: the one named to the command, else that of `--rules`.
    fn rules_file(&self, named: Option<String>) -> Result<String, Failure> {
        match named.or_else(|| self.rules.clone()) {
            Some(store) if store == "store" => Err(Failure::usage(
                "this version reads rules from files only, not from the store; \
                 a file of that name is ./store",
            )),
            Some(file) => Ok(file),
            None => {
                Err(Failure::usage("no rules file; name one, or give --rules FILE or RLCTL_RULES"))
            }
        }
    }

    async fn connect(
        &self,
        url: &str,
        prefix: Prefix,
        deadline: Micros,
    ) -> Result<RedisStore, Failure> {
        let address =
            RedisAddress::parse(url, self.redis_password.clone()).map_err(Failure::usage)?;
        let options = RedisOptions { address, deadline, connect_timeout: OPERATOR_DEADLINE };
        Ok(RedisStore::connect(options, prefix).await?)
    }
}

fn read_password(path: &str) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        Failure::new(Exit::BadFile, format!("cannot read RLCTL_REDIS_PASSWORD_FILE `{path}`: {e}"))
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).into())
}

/// Writes one JSON document on a line of its own.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Parses, runs, reports: the whole life of the process.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed = Cli::command().try_get_matches_from(args).and_then(|m| Cli::from_arg_matches(&m));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors, and clap knows which stream each belongs to.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                Exit::Usage as u8
            } else {
                Exit::Fine as u8
            });
        }
    };
    let exit = run(cli).unwrap_or_else(|failure| {
        if !failure.what.is_empty() {
            let _ = writeln!(io::stderr(), "rlctl: {}", Untrusted(&failure.what));
        }
        failure.exit
    });
    ExitCode::from(exit as u8)
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    // Redis over TLS needs exactly one; that another was installed before is no trouble.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let context = Context::new(cli.global)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(cli.command.run(&context))
}
