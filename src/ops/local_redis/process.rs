//! The processes: starting one, telling that it is ours, sending it a signal, ending it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{LocalRedisError, pause};

pub(super) const CONFIG: &str = "redis.conf";
const LOG: &str = "redis.log";
/// In the order they are looked for.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];
/// How long a server may take to end by itself.
const TIME_TO_END: Duration = Duration::from_secs(3);
/// The last lines of a log say why a server did not start.
const LOG_LINES_TOLD: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Running,
    /// Stopped by a signal: it accepts everything and answers nothing.
    Paused,
    Gone,
}

/// Starts a server in its folder, by the configuration that lies there. It outlives us, and Ctrl-C
/// on our terminal is not meant for it.
pub(super) fn start(folder: &Path, is_sentinel: bool) -> Result<Child, LocalRedisError> {
    for program in PROGRAMS {
        let mut command = Command::new(program);
        command.arg(CONFIG).args(is_sentinel.then_some("--sentinel"));
        let quiet = Stdio::null;
        command.current_dir(folder).process_group(0);
        match command.stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn() {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(LocalRedisError::io(Path::new(program), error)),
        }
    }
    Err(LocalRedisError::NotInstalled)
}

/// The common part of every server's configuration; all paths are those of its own folder.
pub(super) fn usual_config(port: u16) -> String {
    format!("port {port}\nbind 127.0.0.1\ndaemonize no\nlogfile \"{LOG}\"\ndir .\n")
}

pub(super) fn last_words(folder: &Path) -> String {
    let log = fs::read_to_string(folder.join(LOG)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains('#')).collect();
    let from = lines.len().saturating_sub(LOG_LINES_TOLD);
    lines[from..].join("; ")
}

/// Whether this process is the server that was started in `folder` on `port`: a number alone may
/// belong to anybody by now.
pub(super) fn life(pid: u32, folder: &Path, port: u16) -> Life {
    let process = Path::new("/proc").join(pid.to_string());
    if !Path::new("/proc/self").exists() {
        return life_by_ps(pid, port);
    }
    let its_folder = fs::read_link(process.join("cwd")).and_then(fs::canonicalize);
    let is_ours = its_folder.is_ok_and(|its| fs::canonicalize(folder).is_ok_and(|f| f == its));
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    // The name before it may hold anything, also a bracket.
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).chars().next();
    match state {
        Some('T' | 't') if is_ours => Life::Paused,
        None | Some('Z' | 'X') => Life::Gone,
        Some(_) if is_ours => Life::Running,
        Some(_) => Life::Gone,
    }
}

/// Where there is no /proc.
fn life_by_ps(pid: u32, port: u16) -> Life {
    let shown = Command::new("ps").args(["-o", "state=,command=", "-p", &pid.to_string()]).output();
    let shown = shown.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let is_ours = PROGRAMS.iter().any(|program| {
        shown.contains(program) && (shown.contains(&format!(":{port}")) || shown.contains(CONFIG))
    });
    match shown.trim_start().chars().next() {
        Some('T') if is_ours => Life::Paused,
        Some('Z') | None => Life::Gone,
        Some(_) if is_ours => Life::Running,
        Some(_) => Life::Gone,
    }
}

/// Never to a process that is not ours: `life` is asked first, by all who call this.
pub(super) fn signal(pid: u32, signal: Signal) -> Result<(), LocalRedisError> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
    match kill_process(pid, signal) {
        // It ended just now.
        Err(error) if error == rustix::io::Errno::SRCH => Ok(()),
        sent => sent.map_err(|error| LocalRedisError::Signal { pid, error: error.into() }),
    }
}

/// Asks it to end, wakes it up to hear that, and insists when it does not.
pub(super) async fn end(pid: u32, folder: &Path, port: u16) -> Result<(), LocalRedisError> {
    let is_gone = || life(pid, folder, port) == Life::Gone;
    for (how, patience) in
        [(Signal::TERM, TIME_TO_END), (Signal::KILL, TIME_TO_END), (Signal::KILL, TIME_TO_END)]
    {
        if is_gone() {
            return Ok(());
        }
        signal(pid, how)?;
        signal(pid, Signal::CONT)?;
        let until = std::time::Instant::now() + patience;
        while !is_gone() && std::time::Instant::now() < until {
            pause(Duration::from_millis(10)).await;
        }
    }
    if is_gone() { Ok(()) } else { Err(LocalRedisError::Lives { pid, port }) }
}
