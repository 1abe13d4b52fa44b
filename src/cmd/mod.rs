//! The command line: one file per command, each with its arguments, what it does and what it
//! prints. This file has what they share, and is the one place that prints errors.

mod block;
mod check;
mod check_gateway;
mod cluster;
mod context;
mod demo;
mod demo_gateway;
mod events;
mod exempt;
mod limit_args;
mod listing;
mod overrides;
mod password;
mod policy;
mod registry_args;
mod rules;
mod rules_attributes;
mod rules_diff;
mod rules_effective;
mod rules_file;
mod rules_store;
mod schema;
mod serve;
mod settings;
mod simulate;
mod target_args;
mod tier;
mod unblock;
mod unexempt;

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use self::password::Password;
use self::settings::{ContextSettings, Gateways, Settings};
use crate::engine::clock::Micros;
use crate::engine::config::without_passwords;
use crate::engine::registry::{Registry, RegistryError};
use crate::engine::store::keys::Prefix;
use crate::engine::store::redis::{RedisAddress, RedisOptions, RedisRegistry};
use crate::engine::store::{RedisStore, StoreError};
use crate::ops::admin::{Admin, AdminError};
use crate::output::Untrusted;

/// An operator waits longer than a request does.
const OPERATOR_DEADLINE: Micros = Micros(2 * Micros::SECOND.0);
/// A policy has up to 8 MiB, and the line to it may be slow.
const REGISTRY_DEADLINE: Micros = Micros(10 * Micros::SECOND.0);

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
  rlctl override set user:123 --rule per-user --limit 500/1m --for 2h --reason \"big import\"
  rlctl block ip:198.51.100.0/24 --for 1h --reason \"credential stuffing\"

Exit codes: 0 fine, 1 failed, 2 usage, 3 bad file, 4 an expectation was not met, 5 cannot reach
Redis, gateway or target, 6 refused, 7 nothing matched, 8 the answer is no, 130 interrupted.";

#[derive(Debug, clap::Args)]
struct Global {
    /// Redis to work on: redis://[user:pass@]host:port/db, rediss://…, redis+unix:///path,
    /// redis-sentinel://h1:26379,h2:26379/db?master=NAME
    /// [env: RLCTL_REDIS]
    #[arg(long, global = true, value_name = "URL")]
    redis: Option<String>,
    /// Rules file, TOML or JSON, or store for what is published in Redis [env: RLCTL_RULES]
    #[arg(long, global = true, value_name = "FILE|store")]
    rules: Option<String>,
    /// Admin address of a gateway, http://127.0.0.1:9090; may repeat [env: RLCTL_GATEWAY]
    #[arg(long = "gateway", global = true, value_name = "URL")]
    gateways: Vec<String>,
    /// Start of every key in Redis [default: rl1:]
    #[arg(long, global = true, value_name = "P", value_parser = Prefix::new)]
    prefix: Option<Prefix>,
    /// Named set of settings, see `rlctl context` [env: RLCTL_CONTEXT]
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The token to send to a gateway, in a file [env: RLCTL_TOKEN is the token itself]; for serve:
    /// all that are known, one `read|write TOKEN [NAME]` a line
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
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
    Cluster => cluster,
    Context => context,
    Demo => demo,
    Rules => rules,
    Schema => schema,
    Serve => serve,
    Simulate => simulate,
    Override => overrides,
    Tier => tier,
    Block => block,
    Unblock => unblock,
    Exempt => exempt,
    Unexempt => unexempt,
    Events => events,
}

/// How the process ends; the numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Fine = 0,
    Failed = 1,
    Usage = 2,
    BadFile = 3,
    NotAsExpected = 4,
    Unreachable = 5,
    Refused = 6,
    NothingMatched = 7,
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

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Failure {
        let exit = match error {
            RegistryError::Store(error) => return error.into(),
            RegistryError::NoReason
            | RegistryError::TooLong { .. }
            | RegistryError::Control(..)
            | RegistryError::Name { .. }
            | RegistryError::NoLimit
            | RegistryError::TooMany { .. } => Exit::Usage,
            RegistryError::Conflict { .. } => Exit::NotAsExpected,
            RegistryError::NoVersion(_) => Exit::NothingMatched,
            RegistryError::Contended(_)
            | RegistryError::Unrecorded(_)
            | RegistryError::Unreadable { .. } => Exit::Failed,
        };
        Failure::new(exit, error)
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Failure {
        let exit = match error {
            AdminError::Address(_) | AdminError::Token => Exit::Usage,
            // What it cannot do with what was typed.
            AdminError::Refused { status: 400 | 422, .. } => Exit::Usage,
            AdminError::Refused { status: 403, .. } => Exit::Refused,
            _ => Exit::Unreachable,
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
    settings: Settings,
    /// The context in use, if there is one.
    name: Option<String>,
    redis: Option<String>,
    /// What `--redis` itself said.
    redis_flag: Option<String>,
    redis_password: Password,
    rules: Option<String>,
    prefix: Prefix,
    /// Admin addresses, if any are known.
    gateways: Vec<String>,
    /// Whether they were typed.
    gateway_flag: bool,
    token_file: Option<PathBuf>,
    protected: bool,
    readonly: bool,
    output: Output,
    quiet: bool,
    /// Whether somebody watches stderr.
    progress: bool,
    /// Who is at work, for the audit trail.
    actor: String,
}

impl Context {
    /// `mends` are the commands that a choice which exists no more can be mended with.
    fn new(global: Global, mends: bool) -> Result<Context, Failure> {
        let text = read_env;
        let folder = std::env::current_dir()?;
        let home = text("HOME").map(|home| Path::new(&home).join(".config"));
        let config_home = text("XDG_CONFIG_HOME").map(PathBuf::from).or(home);
        let settings = Settings::read(&folder, config_home.as_deref())?;
        let named = global.context.or_else(|| text("RLCTL_CONTEXT"));
        let in_use = settings.in_use().filter(|name| !mends || settings.context(name).is_ok());
        let name = named.or_else(|| in_use.map(String::from));
        let chosen = match &name {
            Some(name) => settings.context(name)?.clone(),
            None => ContextSettings::default(),
        };
        let password_file = text("RLCTL_REDIS_PASSWORD_FILE");
        let command = chosen.password_command.clone();
        let redis_password = match (password_file, text("REDISCLI_AUTH"), command) {
            (Some(path), _, _) => password::Source::File(path),
            (None, Some(password), _) => password::Source::Given(password),
            (None, None, Some(command)) => {
                password::Source::Command { command, redis: chosen.redis.clone() }
            }
            (None, None, None) => password::Source::Nowhere,
        };
        let prefix = match (global.prefix, chosen.prefix.as_deref()) {
            (Some(prefix), _) => prefix,
            (None, Some(text)) => Prefix::new(text).map_err(|e| Failure::new(Exit::BadFile, e))?,
            (None, None) => Prefix::default(),
        };
        Ok(Context {
            redis_flag: global.redis.clone(),
            redis: global.redis.or_else(|| text("RLCTL_REDIS")).or(chosen.redis),
            rules: global.rules.or_else(|| text("RLCTL_RULES")).or(chosen.rules),
            redis_password: Password::from(redis_password),
            prefix,
            gateway_flag: !global.gateways.is_empty(),
            gateways: match (global.gateways, text("RLCTL_GATEWAY")) {
                (typed, _) if !typed.is_empty() => typed,
                (_, Some(listed)) => listed.split(',').map(|one| one.trim().into()).collect(),
                _ => chosen.gateway.map_or_else(Vec::new, Gateways::into_list),
            },
            token_file: global.token_file,
            protected: chosen.protected,
            readonly: chosen.readonly,
            name,
            settings,
            output: global.output,
            quiet: global.quiet,
            progress: !global.quiet && io::stderr().is_terminal(),
            actor: ["RLCTL_ACTOR", "USER", "LOGNAME"]
                .into_iter()
                .find_map(text)
                .unwrap_or_else(|| "unknown".into()),
        })
    }

    /// Whether what is about to be written may be: not where the context is readonly, and where it
    /// is protected only by someone who types its name.
    fn allow_write(&self) -> Result<(), Failure> {
        let Some(name) = &self.name else { return Ok(()) };
        let refused =
            |why: &str| Err(Failure::new(Exit::Refused, format!("context `{name}` is {why}")));
        if self.readonly {
            return refused("readonly; name another with --context");
        }
        if !self.protected {
            return Ok(());
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return refused("protected, and there is no terminal to type its name on");
        }
        write!(io::stderr(), "context `{name}` is protected; type its name to go on: ")?;
        let mut typed = String::new();
        io::stdin().read_line(&mut typed)?;
        if typed.trim() == name { Ok(()) } else { refused("protected, and that was not its name") }
    }

    /// A variable of the environment that only one command knows; empty is not given.
    fn env(&self, name: &str) -> Option<String> {
        read_env(name)
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
        named.or_else(|| self.rules.clone()).ok_or_else(|| {
            Failure::usage("no rules file; name one, or give --rules FILE or RLCTL_RULES")
        })
    }

    async fn connect(
        &self,
        url: &str,
        prefix: Prefix,
        deadline: Micros,
    ) -> Result<RedisStore, Failure> {
        Ok(RedisStore::connect(self.options(url, deadline)?, prefix).await?)
    }

    /// What operators keep in the store; there is no use in keeping it in this process.
    async fn registry(&self) -> Result<Registry, Failure> {
        let Some(url) = &self.redis else {
            return Err(Failure::usage(
                "this is kept in a Redis; say in which one with --redis URL or RLCTL_REDIS",
            ));
        };
        let options = self.options(url, REGISTRY_DEADLINE)?;
        Ok(Registry::Redis(RedisRegistry::connect(options, self.prefix.clone()).await?))
    }

    /// The gateway that is asked, where one is enough.
    fn one_gateway(&self) -> Result<Admin, Failure> {
        let [url] = self.gateways.as_slice() else {
            return Err(Failure::usage("one gateway is asked: name one with --gateway URL"));
        };
        let from_file = self.token_file.as_deref().map(|path| {
            fs::read_to_string(path).map_err(|error| {
                let path = path.display();
                Failure::new(Exit::BadFile, format!("cannot read the token file {path}: {error}"))
            })
        });
        let token = from_file.transpose()?.or_else(|| self.env("RLCTL_TOKEN"));
        Ok(Admin::new(url, token.as_deref())?)
    }

    fn options(&self, url: &str, deadline: Micros) -> Result<RedisOptions, Failure> {
        // First without: what is no address gets no password, and nobody is asked for one.
        let plain = RedisAddress::parse(url, None).map_err(Failure::usage)?;
        let address = match self.redis_password.of(url)? {
            Some(password) => RedisAddress::parse(url, Some(password)).map_err(Failure::usage)?,
            None => plain,
        };
        Ok(RedisOptions { address, deadline, connect_timeout: OPERATOR_DEADLINE })
    }
}

/// The one place that reads the environment; empty is not given.
fn read_env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Writes the result of a command. A reader that has seen enough (`rlctl … | head`) takes nothing
/// from the answer, which the exit code gives all the same.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Writes one JSON document on a line of its own.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(io::Error::from)?;
    print(&(text + "\n"))
}

/// Parses, runs, reports: the whole life of the process.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed = Cli::command().try_get_matches_from(args).and_then(|m| Cli::from_arg_matches(&m));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            if !error.use_stderr() {
                // Help and version are not errors.
                let _ = error.print();
                return ExitCode::from(Exit::Fine as u8);
            }
            // It quotes what was typed, or pasted: line by line, so that its own lines stay.
            for line in error.render().to_string().lines() {
                tell(line);
            }
            return ExitCode::from(Exit::Usage as u8);
        }
    };
    let exit = run(cli).unwrap_or_else(|failure| {
        if !failure.what.is_empty() {
            tell(&format!("rlctl: {}", failure.what));
        }
        failure.exit
    });
    ExitCode::from(exit as u8)
}

/// One line of an error, which may quote what was typed anywhere: also a URL with its password.
fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{}", Untrusted(&without_passwords(line)));
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    // Redis over TLS needs exactly one; that another was installed before is no trouble.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let context = Context::new(cli.global, matches!(cli.command, Command::Context(_)))?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(cli.command.run(&context))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_fit_together() {
        Cli::command().debug_assert();
    }
}
