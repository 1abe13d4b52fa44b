//! The command line: one file per command, each with its arguments, what it does and what it
//! prints. This file has what they share, and is the one place that prints errors.

mod bench;
mod bench_diff;
mod bench_files;
mod bench_live;
mod bench_plan;
mod bench_print;
mod bench_target;
mod block;
mod check;
mod check_gateway;
mod cluster;
mod completions;
mod context;
mod demo;
mod demo_gateway;
mod doctor;
mod events;
mod exempt;
mod failure;
mod inspect;
mod inspect_gateway;
mod inspect_report;
mod keys;
mod limit_args;
mod listing;
mod man;
mod operate_args;
mod out_file;
mod overrides;
mod password;
mod policy;
mod printing;
mod registry_args;
mod report;
mod reset;
mod rules;
mod rules_attributes;
mod rules_diff;
mod rules_diff_log;
mod rules_effective;
mod rules_file;
mod rules_store;
mod scenario;
mod scenario_live;
mod scenario_run;
mod scenario_watch;
mod schema;
mod serve;
mod settings;
mod simulate;
mod simulate_policy;
mod simulate_print;
mod simulate_run;
mod simulate_trace;
mod sites;
mod status;
mod target_args;
mod tier;
mod top;
mod tui;
mod unblock;
mod undo;
mod unexempt;

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use self::failure::{Exit, Failure};
use self::password::Password;
use self::printing::print;
use self::settings::{ContextSettings, Gateways, Settings};
use crate::engine::clock::Micros;
use crate::engine::registry::Registry;
use crate::engine::store::RedisStore;
use crate::engine::store::keys::Prefix;
use crate::engine::store::redis::{RedisAddress, RedisOptions, RedisRegistry, without_secrets};
use crate::ops::admin::Admin;
use crate::output::format::{Colour, ColourWishes};
use crate::output::{Format, Look, about};

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
  rlctl tui --demo                                   an incident, on a dashboard
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
    /// redis-sentinel://h1:26379,h2:26379/db?master=NAME, redis-cluster://h1:7000,h2:7001
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
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// When there are colours [env: NO_COLOR, CLICOLOR_FORCE]
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Colour::Auto)]
    color: Colour,
    /// No notes and no progress on stderr
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Say on stderr what is asked of whom, and how long it took; check also says which limit
    /// decided, and the arithmetic
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Form of what is told on stderr, and of the log of serve
    #[arg(long, global = true, value_enum, value_name = "FORM", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Form of what is told on stderr, and of a gateway's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Short lines for eyes
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Every command once: its name, its arguments, its file.
macro_rules! commands {
    ($($name:ident => $file:ident),+ $(,)?) => {
        #[derive(Debug, Subcommand)]
        enum Command { $($name(Box<$file::Args>)),+ }

        impl Command {
            async fn run(self, context: &Context) -> Result<Exit, Failure> {
                match self { $(Command::$name(args) => $file::run(*args, context).await),+ }
            }
        }
    };
}

commands! {
    Inspect => inspect,
    Reset => reset,
    Undo => undo,
    Keys => keys,
    Doctor => doctor,
    Bench => bench,
    Check => check,
    Cluster => cluster,
    Context => context,
    Demo => demo,
    Rules => rules,
    Scenario => scenario,
    Schema => schema,
    Serve => serve,
    Simulate => simulate,
    Override => overrides,
    Tier => tier,
    Block => block,
    Unblock => unblock,
    Exempt => exempt,
    Unexempt => unexempt,
    Status => status,
    Top => top,
    Events => events,
    Tui => tui,
    Report => report,
    Completions => completions,
    Man => man,
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
    /// How results look.
    look: Look,
    log_format: LogFormat,
    quiet: bool,
    verbose: bool,
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
            look: Look {
                format: global.output,
                colours: global.output.is_for_people()
                    && global.color.on(&colour_wishes(), io::stdout().is_terminal()),
            },
            log_format: global.log_format,
            quiet: global.quiet,
            verbose: global.verbose,
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
        let options = self.options(url, deadline)?;
        Ok(RedisStore::connect(options, prefix).await?)
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
        match self.gateways.as_slice() {
            [url] => self.gateway(url),
            _ => Err(Failure::usage("one gateway is asked: name one with --gateway URL")),
        }
    }

    fn gateway(&self, url: &str) -> Result<Admin, Failure> {
        let from_file = self.token_file.as_deref().map(|path| {
            fs::read_to_string(path).map_err(|error| {
                let path = path.display();
                Failure::new(Exit::BadFile, format!("cannot read the token file {path}: {error}"))
            })
        });
        let token = from_file.transpose()?.or_else(|| self.env("RLCTL_TOKEN"));
        let gateway = Admin::new(url, token.as_deref())?;
        self.detail(format!("gateway at {}", gateway.at()));
        Ok(gateway)
    }

    fn options(&self, url: &str, deadline: Micros) -> Result<RedisOptions, Failure> {
        self.detail(format!(
            "Redis at {}, keys under {}",
            without_secrets(url),
            self.prefix.as_str()
        ));
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

/// Parses, runs, reports: the whole life of the process.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let command = Cli::command().color(printing::colour_of_help(&args));
    let parsed = command.try_get_matches_from(&args).and_then(|m| Cli::from_arg_matches(&m));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            if !error.use_stderr() {
                // Help and version are not errors.
                let _ = error.print();
                return ExitCode::from(Exit::Fine as u8);
            }
            if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                // Help again: nothing was typed that could be quoted.
                let _ = error.print();
                return ExitCode::from(Exit::Usage as u8);
            }
            // It quotes what was typed, or pasted: line by line, so that its own lines stay.
            for line in error.render().to_string().lines() {
                printing::tell(LogFormat::Text, "", line);
            }
            return ExitCode::from(Exit::Usage as u8);
        }
    };
    let log_format = cli.global.log_format;
    let exit = run(cli).unwrap_or_else(|failure| {
        if !failure.what.is_empty() {
            printing::tell(log_format, "rlctl", &failure.what);
        }
        failure.exit
    });
    ExitCode::from(exit as u8)
}

fn colour_wishes() -> ColourWishes {
    ColourWishes {
        no_color: read_env("NO_COLOR"),
        clicolor_force: read_env("CLICOLOR_FORCE"),
        term: read_env("TERM"),
    }
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    // Redis over TLS needs exactly one; that another was installed before is no trouble.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let context = Context::new(cli.global, matches!(cli.command, Command::Context(_)))?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let began = Micros::now();
    let ended = runtime.block_on(cli.command.run(&context));
    context.detail(format!("took {}", about(Micros::now().saturating_sub(began))));
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_fit_together() {
        Cli::command().debug_assert();
    }

    /// Every command and those below it, with all their options.
    fn every_command() -> Vec<clap::Command> {
        fn add(command: &clap::Command, all: &mut Vec<clap::Command>) {
            all.push(command.clone());
            let below = command.get_subcommands().filter(|below| below.get_name() != "help");
            below.for_each(|below| add(below, all));
        }
        let mut root = Cli::command();
        root.build();
        let mut all = Vec::new();
        add(&root, &mut all);
        all
    }

    /// The words of each call of rlctl on a line of a shell, without what is said about it behind
    /// two blanks.
    fn calls(line: &str) -> Vec<Vec<String>> {
        let mut calls = vec![Vec::new()];
        let (mut word, mut quote, mut blanks) = (None::<String>, None, 0);
        for c in line.trim().chars().chain([' ']) {
            match (c, quote) {
                (_, Some(open)) if c == open => quote = None,
                (_, Some(_)) => word.get_or_insert_default().push(c),
                ('"' | '\'', None) => (quote, word) = (Some(c), word.or(Some(String::new()))),
                (' ', None) => {
                    blanks += 1;
                    match word.take().as_deref() {
                        Some("|" | "&&" | ";" | ">" | ">>" | "<") => calls.push(Vec::new()),
                        Some(whole) => calls.last_mut().unwrap().push(whole.to_string()),
                        None => {}
                    }
                    if blanks == 2 {
                        break;
                    }
                    continue;
                }
                (_, None) => word.get_or_insert_default().push(c),
            }
            blanks = 0;
        }
        for call in &mut calls {
            // Variables of the environment may be set before it.
            let start = call.iter().position(|word| word == "rlctl").unwrap_or(call.len());
            call.drain(..start);
        }
        calls.retain(|call| !call.is_empty());
        calls
    }

    #[test]
    fn every_help_has_examples_that_parse() {
        for mut command in every_command() {
            let help = command.render_long_help().to_string();
            let name = command.get_display_name().unwrap_or("rlctl").to_string();
            let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| {
                panic!("{name} --help has no examples");
            });
            let examples: Vec<&str> =
                examples.lines().take_while(|line| line.starts_with("  ")).collect();
            let found: Vec<_> = examples.iter().flat_map(|line| calls(line)).collect();
            assert!(!found.is_empty(), "{name}: {examples:?}");
            for call in &found {
                let parsed = Cli::command().try_get_matches_from(call);
                assert!(parsed.is_ok(), "{name}: {call:?}: {}", parsed.unwrap_err());
            }
            let own = name.replace("rlctl-", "");
            let words: Vec<&str> = own.split('-').collect();
            let shows_itself = found.iter().any(|call| {
                let typed = call.join("-");
                words.iter().all(|word| typed.contains(word))
            });
            assert!(shows_itself || name == "rlctl", "{name} shows others: {found:?}");
        }
    }

    #[test]
    fn a_line_of_examples_is_read_as_a_shell_would() {
        let line = "A=b rlctl x 'a b' --c \"d \\\" e\" | jq . && rlctl y   says why";
        let line = line.replace("\\\"", "");
        let words = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            calls(&line),
            [words(&["rlctl", "x", "a b", "--c", "d  e"]), words(&["rlctl", "y"])]
        );
    }
}
