//! `rlctl cluster`: a real Redis of this machine, to try things on and to break.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

use super::printing::WatchArgs;
use super::{Context, Exit, Failure, print};
use crate::engine::clock::Micros;
use crate::engine::units;
use crate::ops::local_redis::{Kind, LocalRedis, LocalRedisError, NodeStatus, Plan, Role};
use crate::output::{Column, List, Row, SCHEMA, about};

const DEFAULT_BASE_PORT: u16 = 7000;

/// Start, show and break a Redis of this machine
///
/// Real redis-server processes on 127.0.0.1, for demos and tests: one alone, a master with
/// replicas under three sentinels, or a cluster. They go on running when this command ends;
/// `rlctl cluster down` ends them. They keep nothing on disk.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl cluster up cluster                     three masters, three replicas, ports 7000 to 7005
  rlctl cluster up sentinel --base-port 6400   one master, two replicas, three sentinels
  rlctl cluster status -o json
  rlctl cluster status --watch                 while something else breaks them
  rlctl cluster kill-master                    and watch who takes over
  rlctl cluster add-node && rlctl cluster reshard
  rlctl cluster down")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// Folder of the servers [default: rlctl/redis in the user's state folder]
    #[arg(long, global = true, value_name = "D")]
    dir: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Start servers; where some have ended, start those again
    #[command(after_help = "\
Examples:
  rlctl cluster up single
  rlctl cluster up sentinel --base-port 6400
  rlctl cluster up cluster --masters 3 --replicas 1 --dir /tmp/redis")]
    Up {
        what: What,
        /// How many masters a cluster has [default: 3]
        #[arg(long, value_name = "N")]
        masters: Option<u16>,
        /// How many replicas each master has [default: 1, with sentinel 2]
        #[arg(long, value_name = "R")]
        replicas: Option<u16>,
        /// The first port; 0 takes any that are free
        #[arg(long, value_name = "P", default_value_t = DEFAULT_BASE_PORT)]
        base_port: u16,
        /// How long a server may be silent before another takes over
        #[arg(long, value_name = "D", default_value = "1s", value_parser = units::parse_period)]
        node_timeout: Micros,
    },
    /// End all servers and remove their folders
    #[command(after_help = "\
Examples:
  rlctl cluster down
  rlctl cluster down --dir /tmp/redis")]
    Down,
    /// Show the servers: who runs, who is master, who has which slots
    #[command(after_help = "\
Examples:
  rlctl cluster status
  rlctl cluster status --watch=1s
  rlctl cluster status -o json")]
    Status(WatchArgs),
    /// Kill a master, as a power failure would
    #[command(after_help = "\
Examples:
  rlctl cluster kill-master                   the first one
  rlctl cluster kill-master 7001")]
    KillMaster {
        /// Its port [default: the first master that runs]
        port: Option<u16>,
    },
    /// Let a replica take over from a master that works
    #[command(after_help = "\
Examples:
  rlctl cluster failover
  rlctl cluster failover 7001")]
    Failover {
        /// The master's port [default: the first master that runs]
        port: Option<u16>,
    },
    /// Take one more server into the cluster: a master without slots, or a replica
    #[command(after_help = "\
Examples:
  rlctl cluster add-node
  rlctl cluster add-node --replica-of 7000")]
    AddNode {
        /// Port of the master that it follows
        #[arg(long, value_name = "PORT")]
        replica_of: Option<u16>,
    },
    /// Move slots: as many as it takes for all masters to have the same number, or some
    #[command(after_help = "\
Examples:
  rlctl cluster reshard                       the same for all masters
  rlctl cluster reshard --slots 100 --from 7000 --to 7001")]
    Reshard {
        /// How many, from one master to another
        #[arg(long, value_name = "N", requires = "from", requires = "to")]
        slots: Option<u32>,
        #[arg(long, value_name = "PORT", requires = "slots")]
        from: Option<u16>,
        #[arg(long, value_name = "PORT", requires = "slots")]
        to: Option<u16>,
    },
    /// Take a server out of the cluster; its slots go to the other masters first
    #[command(after_help = "\
Examples:
  rlctl cluster remove-node 7006")]
    RemoveNode { port: u16 },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// One server
    Single,
    /// A master and its replicas, watched over by three sentinels
    Sentinel,
    /// Masters that share the keys, each with replicas
    Cluster,
}

/// What a command did, for scripts.
#[derive(Default, Serialize)]
struct Done {
    schema: &'static str,
    done: &'static str,
    port: Option<u16>,
    new_master: Option<u16>,
    slots_moved: Option<u32>,
    took_us: u64,
}

impl From<LocalRedisError> for Failure {
    fn from(error: LocalRedisError) -> Failure {
        let exit = match &error {
            LocalRedisError::NothingHere(_) => Exit::NothingMatched,
            LocalRedisError::Impossible(_) | LocalRedisError::RunsAlready(..) => Exit::Usage,
            LocalRedisError::State { .. } => Exit::BadFile,
            LocalRedisError::Store(_) => Exit::Unreachable,
            _ => Exit::Failed,
        };
        Failure::new(exit, error)
    }
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let dir = args.dir.or_else(|| default_dir(context)).ok_or_else(|| {
        Failure::usage("there is no HOME to keep servers in; name a folder with --dir")
    })?;
    let tell = |text: &str| {
        if !context.quiet {
            // Whoever closed stderr does not want to know.
            let _ = writeln!(io::stderr(), "{text}");
        }
    };
    let began = Micros::now();
    let mut done = Done { schema: SCHEMA, ..Done::default() };
    match args.verb {
        Verb::Up { what, masters, replicas, base_port, node_timeout } => {
            let plan = plan(what, masters, replicas, base_port, node_timeout);
            let up = tokio::select! {
                up = LocalRedis::up(&dir, &plan, &tell) => up?,
                _ = tokio::signal::ctrl_c() => {
                    tell("interrupted; ending what was started");
                    LocalRedis::open(&dir)?.down().await?;
                    return Err(Failure::new(Exit::Interrupted, ""));
                }
            };
            tell(&format!("up after {}", about(Micros::now().saturating_sub(began))));
            print(&status(&up, false, context).await?)?;
            return Ok(Exit::Fine);
        }
        Verb::Status(watch) => {
            let frame = async |goes_on| {
                Ok((status(&LocalRedis::open(&dir)?, goes_on, context).await?, Exit::Fine))
            };
            return watch.show(context, frame).await;
        }
        Verb::Down => {
            LocalRedis::open(&dir)?.down().await?;
            done.done = "down";
        }
        Verb::KillMaster { port } => {
            let local = LocalRedis::open(&dir)?;
            let port = local.master(port).await?;
            local.kill(port).await?;
            (done.done, done.port) = ("kill-master", Some(port));
        }
        Verb::Failover { port } => {
            let (before, after) = LocalRedis::open(&dir)?.fail_over(port).await?;
            (done.done, done.port, done.new_master) = ("failover", Some(before), Some(after));
        }
        Verb::AddNode { replica_of } => {
            let port = LocalRedis::open(&dir)?.add_node(replica_of, &tell).await?;
            (done.done, done.port) = ("add-node", Some(port));
        }
        Verb::Reshard { slots, from, to } => {
            let local = LocalRedis::open(&dir)?;
            let moved = match (slots, from, to) {
                (Some(slots), Some(from), Some(to)) => {
                    local.move_slots(slots, from, to, &tell).await?
                }
                _ => local.balance(&tell).await?,
            };
            (done.done, done.slots_moved) = ("reshard", Some(moved));
        }
        Verb::RemoveNode { port } => {
            LocalRedis::open(&dir)?.remove_node(port, &tell).await?;
            (done.done, done.port) = ("remove-node", Some(port));
        }
    }
    done.took_us = Micros::now().saturating_sub(began).0;
    context.print_one(&done, || done.in_words() + "\n")?;
    Ok(Exit::Fine)
}

/// Where programs keep what they need again but nobody edits.
fn default_dir(context: &Context) -> Option<PathBuf> {
    let home = || Some(PathBuf::from(context.env("HOME")?).join(".local").join("state"));
    let state = context.env("XDG_STATE_HOME").map(PathBuf::from).or_else(home)?;
    Some(state.join("rlctl").join("redis"))
}

fn plan(
    what: What,
    masters: Option<u16>,
    replicas: Option<u16>,
    base_port: u16,
    node_timeout: Micros,
) -> Plan {
    let (kind, usual) = match what {
        What::Single => (Kind::Single, (1, 0)),
        What::Sentinel => (Kind::Sentinel, (1, 2)),
        What::Cluster => (Kind::Cluster, (3, 1)),
    };
    Plan {
        kind,
        masters: masters.unwrap_or(usual.0),
        replicas: replicas.unwrap_or(usual.1),
        base_port,
        node_timeout,
        config: Vec::new(),
    }
}

/// What the servers do now, as it is printed.
async fn status(local: &LocalRedis, goes_on: bool, context: &Context) -> Result<String, Failure> {
    /// What is known of the servers as a whole.
    #[derive(Serialize)]
    struct Head<'a> {
        kind: Kind,
        url: &'a str,
        dir: &'a str,
    }
    let status = local.status().await;
    let head = Head { kind: status.kind, url: &status.url, dir: &status.dir };
    let below = format!("\n--redis '{}'\n", status.url);
    Ok(List::new(&status.items).head(&head).below(below).render(context.look, goes_on)?)
}

impl Row for NodeStatus {
    fn columns() -> Vec<Column<NodeStatus>> {
        let of = |item: &NodeStatus| item.replica_of.map_or("-".into(), |port| port.to_string());
        let keys = |item: &NodeStatus| item.keys.map_or("-".into(), |keys| keys.to_string());
        let memory = |item: &NodeStatus| item.memory_bytes.map_or("-".into(), mebibytes);
        vec![
            Column::number("PORT", |item: &NodeStatus| item.port.to_string()),
            Column::new("ROLE", |item| role(item.role).into()),
            Column::number("OF", of),
            Column::new("IS", |item| item.life.into()),
            Column::number("KEYS", keys),
            Column::number("MEMORY", memory),
            Column::number("PID", |item| item.pid.to_string()),
            Column::new("SLOTS", ranges),
        ]
    }

    const FIELDS: &'static [&'static str] = &[
        "port",
        "pid",
        "role",
        "life",
        "replica_of",
        "slots",
        "slot_ranges",
        "keys",
        "memory_bytes",
    ];
}

/// The slots of a server. A reshard may leave many ranges; the count says enough then.
fn ranges(item: &NodeStatus) -> String {
    let range = |(first, last): &(u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}–{last}"),
    };
    match item.slot_ranges.len() {
        0 => "-".into(),
        1..=3 => item.slot_ranges.iter().map(range).collect::<Vec<_>>().join(" "),
        many => format!("{} in {many} ranges", item.slots.unwrap_or_default()),
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Master => "master",
        Role::Replica => "replica",
        Role::Sentinel => "sentinel",
        Role::Unknown => "-",
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

impl Done {
    fn in_words(&self) -> String {
        let port = self.port.unwrap_or_default();
        let took = about(Micros(self.took_us));
        match (self.done, self.new_master, self.slots_moved) {
            ("kill-master", ..) => format!("killed the master on port {port}"),
            ("failover", Some(now), _) => {
                format!("port {now} is master in place of port {port}, after {took}")
            }
            ("add-node", ..) => format!("port {port} belongs to the cluster, after {took}"),
            ("reshard", _, Some(moved)) => format!("moved {moved} slots in {took}"),
            ("remove-node", ..) => format!("port {port} is out of the cluster, after {took}"),
            _ => "all servers ended".into(),
        }
    }
}
