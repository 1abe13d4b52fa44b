//! The real program on a real terminal: a pseudo-terminal, and a screen made of what it writes.

use std::io::{Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};
use rlctl::tui::term::Term;

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Terminal {
    screen: Arc<Mutex<vt100::Parser>>,
    keys: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    /// How the terminal was set before the program began.
    before: String,
}

impl Terminal {
    fn run(program: &str, arguments: &[&str], (columns, rows): (u16, u16)) -> Terminal {
        let size = PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let before = settings(&*pair.master);
        let mut command = CommandBuilder::new(program);
        command.args(arguments);
        command.env("LANG", "C.UTF-8");
        command.env("TERM", "xterm-256color");
        let child = pair.slave.spawn_command(command).unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(lines(rows), lines(columns), 0)));
        let (mut output, drawn) = (pair.master.try_clone_reader().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap().process(&bytes[..n]);
            }
        });
        let keys = pair.master.take_writer().unwrap();
        Terminal { screen, keys, child, master: pair.master, before }
    }

    pub(super) fn rlctl(arguments: &[&str], size: (u16, u16)) -> Terminal {
        Terminal::run(env!("CARGO_BIN_EXE_rlctl"), arguments, size)
    }

    pub(super) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn until(&self, what: &str, holds: impl Fn(&Terminal) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < until, "never: {what}\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn shows(&self, text: &str) {
        self.until(text, |terminal| terminal.text().contains(text));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    pub(super) fn process_id(&self) -> u32 {
        self.child.process_id().unwrap()
    }

    fn signal(&self, name: &str) {
        let id = self.process_id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(sent.success());
    }

    fn ended(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "it does not end\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The alternate screen is left, the cursor is back, keys are lines again.
    fn is_restored(&self) {
        self.until("the terminal is as it was", |terminal| {
            let parser = terminal.screen.lock().unwrap();
            !parser.screen().alternate_screen()
                && !parser.screen().hide_cursor()
                && settings(&*terminal.master) == terminal.before
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(n: u16) -> NonZero<u16> {
    NonZero::new(n).unwrap()
}

fn settings(master: &dyn MasterPty) -> String {
    format!("{:?}", master.get_termios())
}

#[test]
fn start_drill_down_filter_pause_resize_quit() {
    let mut terminal = Terminal::rlctl(&["tui", "--demo", "hot-key"], (100, 30));
    terminal.shows("NOTHING WRONG");
    assert!(terminal.screen.lock().unwrap().screen().alternate_screen());
    assert_ne!(settings(&*terminal.master), terminal.before);
    terminal.shows("TRAFFIC, not Redis");
    terminal.press("\r");
    terminal.shows("WHY REFUSED");
    terminal.shows("[██████████] 100%");
    terminal.press("\x1b");
    terminal.shows("WHAT TO DO");
    terminal.press(":keys\r");
    terminal.shows("KEYS by usage");
    terminal.press("/biz-\r");
    terminal.shows("filter /biz-");
    terminal.until("only those", |terminal| !terminal.text().contains("apikey:cust"));
    terminal.press(" ");
    terminal.shows("PAUSED");
    terminal.shows("PAUSED -2s");
    terminal.press("L");
    terminal.until("it goes on", |terminal| !terminal.text().contains("PAUSED"));
    let size = PtySize { rows: 12, cols: 50, pixel_width: 0, pixel_height: 0 };
    terminal.screen.lock().unwrap().screen_mut().set_size(lines(12), lines(50));
    terminal.master.resize(size).unwrap();
    terminal.until("it is drawn anew", |terminal| terminal.text().contains("KEYS by usage"));
    terminal.press("q");
    assert!(terminal.ended().success());
    terminal.is_restored();
}

#[test]
fn no_key_is_lost_that_comes_together_with_a_new_size() {
    let mut terminal = Terminal::rlctl(&["tui", "--demo"], (100, 30));
    terminal.shows("VERDICT");
    for n in 0..40 {
        let rows = 20 + n % 10;
        let size = PtySize { rows, cols: 100, pixel_width: 0, pixel_height: 0 };
        terminal.screen.lock().unwrap().screen_mut().set_size(lines(rows), lines(100));
        terminal.master.resize(size).unwrap();
        terminal.press("?");
        let is_on = n % 2 == 0;
        terminal.until("help comes and goes", |terminal| {
            terminal.text().contains("key closes") == is_on
        });
    }
    terminal.press("q");
    assert!(terminal.ended().success());
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_whole() {
    let mut terminal = Terminal::rlctl(&["tui", "--demo"], (80, 24));
    terminal.shows("VERDICT");
    terminal.signal("TERM");
    assert_eq!(terminal.ended().exit_code(), 130);
    terminal.is_restored();
}

#[test]
fn ctrl_c_is_an_interruption_and_q_is_not() {
    for (keys, code) in [("\x03", 130), ("q", 0)] {
        let mut terminal = Terminal::rlctl(&["tui", "--demo"], (80, 24));
        terminal.shows("VERDICT");
        terminal.press(keys);
        assert_eq!(terminal.ended().exit_code(), code);
        terminal.is_restored();
    }
}

#[test]
fn ctrl_z_gives_the_terminal_back_and_takes_it_again() {
    let mut terminal = Terminal::rlctl(&["tui", "--demo"], (80, 24));
    terminal.shows("VERDICT");
    terminal.press("\x1a");
    let path = format!("/proc/{}/stat", terminal.process_id());
    let is_stopped = || std::fs::read_to_string(&path).unwrap().contains(") T ");
    terminal.until("it is stopped", |_| is_stopped());
    terminal.is_restored();
    terminal.signal("CONT");
    terminal.until("it is back", |terminal| {
        terminal.screen.lock().unwrap().screen().alternate_screen()
            && terminal.text().contains("VERDICT")
    });
    terminal.press("q");
    assert!(terminal.ended().success());
    terminal.is_restored();
}

/// Not a test: what the next one starts.
#[test]
#[ignore = "the test below starts it on a terminal of its own"]
fn panics_on_a_terminal() {
    let _term = Term::enter().unwrap();
    panic!("what a pity");
}

#[test]
fn a_panic_leaves_the_terminal_whole_and_its_words_on_it() {
    let program = std::env::current_exe().unwrap();
    let name = "tui::terminal::panics_on_a_terminal";
    let arguments = ["--ignored", "--exact", "--nocapture", name];
    let mut terminal = Terminal::run(program.to_str().unwrap(), &arguments, (100, 30));
    assert!(!terminal.ended().success());
    terminal.shows("what a pity");
    terminal.is_restored();
}

#[test]
fn what_was_recorded_can_be_replayed_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rlrec").to_str().unwrap().to_string();
    let mut terminal =
        Terminal::rlctl(&["tui", "--demo", "failover", "--record", &path], (100, 30));
    terminal.shows("REC ");
    terminal.shows("LIMITS ARE NOT ENFORCED");
    terminal.press("Q");
    assert!(terminal.ended().success());
    // The last picture stays.
    terminal.shows("LIMITS ARE NOT ENFORCED");
    assert!(Path::new(&path).exists());
    let mut terminal = Terminal::rlctl(&["tui", "--replay", &path], (100, 30));
    terminal.shows("REPLAY");
    terminal.shows("NOTHING WRONG");
    terminal.press("}");
    terminal.shows("LIMITS ARE NOT ENFORCED");
    terminal.press("q");
    assert!(terminal.ended().success());
    let report = std::process::Command::new(env!("CARGO_BIN_EXE_rlctl"))
        .args(["report", &path])
        .output()
        .unwrap();
    let text = String::from_utf8(report.stdout).unwrap();
    assert!(text.contains("Primary 10.0.0.5:6379 is away"), "{text}");
    let report = std::process::Command::new(env!("CARGO_BIN_EXE_rlctl"))
        .args(["report", &path, "-o", "json"])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let schema = crate::golden::schema("report");
    assert_eq!(crate::support::schema::misfit(&schema, &schema, &report, "$"), None);
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let run = |arguments: &[&str]| {
        let ran = std::process::Command::new(env!("CARGO_BIN_EXE_rlctl"))
            .args(arguments)
            .env_remove("RLCTL_GATEWAY")
            .output()
            .unwrap();
        (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
    };
    let (code, said) = run(&["tui", "--demo"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("needs a terminal"), "{said}");
    let (code, said) = run(&["tui"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("--demo"), "{said}");
    let (code, said) = run(&["tui", "--demo", "nonsense"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("known: incident"), "{said}");
    let (code, said) = run(&["report", "/does/not/exist"]);
    assert_eq!(code, Some(1), "{said}");
}
