//! How commands print: results on stdout in the form that was asked for, everything else on stderr.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use serde::Serialize;
use serde_json::json;

use super::{Context, Exit, Failure, LogFormat};
use crate::engine::clock::Micros;
use crate::engine::config::without_passwords;
use crate::engine::units;
use crate::output::{Format, List, Row, Rows, Tone, Untrusted, csv, json_line, moment};

/// Enough for many lines at once.
const BUFFER_BYTES: usize = 1 << 16;

impl Context {
    /// Prints one result: `value` for programs, `words` for people, escaped.
    pub(super) fn print_one(
        &self,
        value: &impl Serialize,
        words: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        print(&self.one(value, words)?)
    }

    /// One result as text, for what is watched.
    pub(super) fn one(
        &self,
        value: &impl Serialize,
        words: impl FnOnce() -> String,
    ) -> Result<String, Failure> {
        Ok(match self.look.format {
            Format::Json | Format::Ndjson => json_line(value) + "\n",
            Format::Csv => csv::one(value)?,
            Format::Table | Format::Wide => words(),
        })
    }

    /// Prints a list; `nothing` is noted for people when it is empty.
    pub(super) fn print_list<R: Row, H: Serialize>(
        &self,
        list: &List<'_, R, H>,
        nothing: &str,
    ) -> Result<(), Failure> {
        if list.is_empty() && self.look.format.is_for_people() && !nothing.is_empty() {
            self.note(nothing);
        }
        print(&list.render(self.look, false)?)
    }

    /// Prints rows one by one as they come, in bounded memory.
    pub(super) fn rows<R: Row>(&self) -> Result<Rows<R, BufWriter<Stdout>>, Failure> {
        Ok(Rows::new(BufWriter::with_capacity(BUFFER_BYTES, io::stdout()), self.look)?)
    }

    /// The same without an end, where every row is to be seen at once.
    pub(super) fn endless_rows<R: Row>(&self) -> Result<Rows<R, BufWriter<Stdout>>, Failure> {
        Ok(Rows::endless(BufWriter::with_capacity(BUFFER_BYTES, io::stdout()), self.look)?)
    }

    /// For what has one form only: no other may be asked for.
    pub(super) fn refuse_output(&self, why: &str) -> Result<(), Failure> {
        match self.look.format {
            Format::Table => Ok(()),
            format => Err(Failure::usage(format!("{why}; leave out -o {}", format.name()))),
        }
    }

    /// A word for people in its tone; it must have been escaped before.
    pub(super) fn paint(&self, tone: Tone, word: &str) -> String {
        tone.paint(word, self.look.colours)
    }

    /// Something worth knowing that is not the result.
    pub(super) fn note(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            tell(self.log_format, "note", &text.to_string());
        }
    }

    /// Something for those who ask with -v.
    pub(super) fn detail(&self, text: impl std::fmt::Display) {
        if self.verbose && !self.quiet {
            tell(self.log_format, "detail", &text.to_string());
        }
    }
}

/// Writes the result of a command. A reader that has seen enough (`rlctl … | head`) takes nothing
/// from the answer, which the exit code gives all the same.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    match write(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether whoever read what we print is gone: a pipe tells only who writes, and whoever waits for
/// something to happen would wait for nobody.
pub(super) fn is_reader_gone() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let out = io::stdout();
    let mut pipes = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut pipes, Some(&at_once)).is_ok() && pipes[0].revents().contains(PollFlags::ERR)
}

/// Writes one line to stderr. It may quote what was typed anywhere, also a URL with its password,
/// and what a server replied.
pub(super) fn tell(form: LogFormat, level: &str, line: &str) {
    let line = without_passwords(line);
    let text = match (form, level) {
        (LogFormat::Json, _) => {
            let level = if level == "rlctl" { "error" } else { level };
            json_line(&json!({ "at_us": Micros::now().0, "level": level, "message": line }))
        }
        (LogFormat::Text, "") => Untrusted(&line).to_string(),
        (LogFormat::Text, level) => format!("{level}: {}", Untrusted(&line)),
    };
    // Whoever closed stderr does not want to know.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Help is printed before anything is parsed: what was typed about colours is looked for by hand.
/// The environment is heeded by clap.
pub(super) fn colour_of_help(args: &[OsString]) -> clap::ColorChoice {
    let words = args.iter().filter_map(|arg| arg.to_str()).collect::<Vec<_>>();
    let after = words.iter().zip(words.iter().skip(1));
    let apart = after.filter(|(flag, _)| **flag == "--color").map(|(_, value)| *value);
    let joined = words.iter().filter_map(|word| word.strip_prefix("--color="));
    match apart.chain(joined).last() {
        Some("always") => clap::ColorChoice::Always,
        Some("never") => clap::ColorChoice::Never,
        _ => clap::ColorChoice::Auto,
    }
}

/// `--watch[=2s]`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct WatchArgs {
    /// Show it again every so often, 2s if not said, until interrupted
    #[arg(
        long,
        value_name = "D",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s",
        value_parser = units::parse_period
    )]
    watch: Option<Micros>,
}

impl WatchArgs {
    /// For commands that go on unless they are told not to.
    pub(super) fn or_usual(self) -> WatchArgs {
        WatchArgs { watch: self.watch.or(Some(Micros(2 * Micros::SECOND.0))) }
    }

    pub(super) fn is_on(self) -> bool {
        self.watch.is_some()
    }

    /// Shows once, or over and over until interrupted (exit 130) or until nobody reads. `frame`
    /// learns whether one was shown before it; one that fails later on is noted and waited for.
    /// On a terminal each frame takes the place of the last one; elsewhere they follow each other.
    pub(super) async fn show(
        self,
        context: &Context,
        mut frame: impl AsyncFnMut(bool) -> Result<(String, Exit), Failure>,
    ) -> Result<Exit, Failure> {
        let Some(every) = self.watch else {
            let (text, exit) = frame(false).await?;
            print(&text)?;
            return Ok(exit);
        };
        let mut view = Frames::new(context, every);
        let again = async {
            view.show(&frame(false).await?.0)?;
            let mut away = false;
            loop {
                tokio::time::sleep(every.into()).await;
                match frame(true).await {
                    Ok((text, _)) => {
                        view.show(&text)?;
                        away = false;
                    }
                    Err(failure) => {
                        if !std::mem::replace(&mut away, true) {
                            context.note(format!("{}; waiting for it", failure.what));
                        }
                    }
                }
            }
        };
        until_interrupted(again).await
    }
}

/// Goes on until it ends or somebody interrupts it: that is listened for before anything is done.
pub(super) async fn until_interrupted(
    work: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
        ended = work => ended,
    }
}

/// Where frames are shown.
struct Frames {
    people: bool,
    redraws: bool,
    every: Micros,
    shown: bool,
}

impl Frames {
    fn new(context: &Context, every: Micros) -> Frames {
        let people = context.look.format.is_for_people();
        Frames { people, redraws: people && io::stdout().is_terminal(), every, shown: false }
    }

    fn show(&mut self, text: &str) -> Result<(), Failure> {
        let goes_on = std::mem::replace(&mut self.shown, true);
        let now = moment(Micros::now());
        let frame = match (self.redraws, self.people) {
            (true, _) => {
                let title = format!("every {}, at {now}; Ctrl-C ends\n\n", self.every);
                // From the top, each line to its end, then all below: nothing flickers.
                let lines = (title + text).replace('\n', "\u{1b}[K\n");
                let start = if goes_on { "\u{1b}[H" } else { "\u{1b}[2J\u{1b}[H" };
                format!("{start}{lines}\u{1b}[J")
            }
            (false, true) => {
                let gap = if goes_on { "\n" } else { "" };
                format!("{gap}at {now}\n{text}")
            }
            (false, false) => text.into(),
        };
        Ok(write(&frame)?)
    }
}
