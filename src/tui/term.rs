//! The terminal, borrowed: given back as it was after the end, a panic, a signal or ctrl-z.

use std::io::{self, Stdout, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use crossterm::cursor::Show;
use crossterm::event::{DisableMouseCapture, EnableMouseCapture, Event, KeyCode, KeyEventKind};
use crossterm::event::{KeyModifiers, MouseEventKind};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};

use super::keys::Key;
use super::model::Model;
use super::view;

static PANICKED: AtomicBool = AtomicBool::new(false);
/// Given back once: leaving the other screen twice puts the cursor where it was long ago.
static BORROWED: AtomicBool = AtomicBool::new(false);

/// Whether some part of the program has panicked: its words are on the screen, and it shall end.
pub fn panicked() -> bool {
    PANICKED.load(Ordering::Relaxed)
}

/// A terminal that shows the dashboard; gives it back when dropped.
pub struct Term {
    inner: Terminal<CrosstermBackend<Stdout>>,
    mouse: bool,
}

impl Term {
    pub fn enter() -> io::Result<Term> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.store(true, Ordering::Relaxed);
            restore();
            before(panic);
        }));
        borrow()?;
        let inner = match Terminal::new(CrosstermBackend::new(stdout())) {
            Ok(inner) => inner,
            Err(error) => {
                restore();
                return Err(error);
            }
        };
        Ok(Term { inner, mouse: false })
    }

    pub fn draw(&mut self, model: &mut Model) -> io::Result<()> {
        let drawn = self.inner.draw(|frame| view::draw(frame, model))?;
        model.page = view::page(drawn.area.height);
        Ok(())
    }

    /// The picture as text, for a file or the scrollback.
    pub fn picture(&mut self, model: &Model) -> io::Result<String> {
        let size = self.inner.size()?;
        Ok(picture(model, size.width, size.height))
    }

    /// Draws everything anew, whatever has happened to the screen. The cursor is not asked where it
    /// is, as clearing would: not every terminal answers.
    pub fn redraw(&mut self) -> io::Result<()> {
        execute!(stdout(), Clear(ClearType::All))?;
        self.inner = Terminal::new(CrosstermBackend::new(stdout()))?;
        Ok(())
    }

    pub fn set_mouse(&mut self, on: bool) -> io::Result<()> {
        self.mouse = on;
        if on {
            execute!(stdout(), EnableMouseCapture)
        } else {
            execute!(stdout(), DisableMouseCapture)
        }
    }

    /// Hands text to the clipboard of whoever sits at the terminal, also over ssh (OSC 52).
    pub fn copy(&mut self, text: &str) -> io::Result<()> {
        let coded = base64::engine::general_purpose::STANDARD.encode(text);
        let mut out = stdout();
        write!(out, "\x1b]52;c;{coded}\x07")?;
        out.flush()
    }

    /// Stops until the shell says go on. `all`: with those who run in the same pipeline.
    pub fn suspend(&mut self, all: bool) -> io::Result<()> {
        restore();
        // Stop, and not the signal that ctrl-z is: that one is caught.
        let stopped = if all {
            kill_current_process_group(Signal::STOP)
        } else {
            kill_process(getpid(), Signal::STOP)
        };
        borrow()?;
        if self.mouse {
            self.set_mouse(true)?;
        }
        stopped?;
        self.redraw()
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        restore();
    }
}

impl std::fmt::Debug for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Term")
    }
}

/// What would be drawn on a terminal of this size, without one.
pub fn picture(model: &Model, width: u16, height: u16) -> String {
    let Ok(mut terminal) = Terminal::new(ratatui::backend::TestBackend::new(width, height));
    let Ok(drawn) = terminal.draw(|frame| view::draw(frame, model));
    let cells = drawn.buffer.content();
    let mut text = String::new();
    for row in cells.chunks(usize::from(width.max(1))) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn borrow() -> io::Result<()> {
    BORROWED.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)
}

/// Whatever fails here, nothing better can be done.
fn restore() {
    if !BORROWED.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = stdout();
    let _ = queue!(out, DisableMouseCapture, LeaveAlternateScreen, Show);
    let _ = out.flush();
    let _ = disable_raw_mode();
}

/// A key as the model knows it.
pub fn key_of(event: &Event) -> Option<Key> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => {
            if key.modifiers.contains(KeyModifiers::ALT) {
                return None;
            }
            let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
            Some(match key.code {
                KeyCode::Char(c) if ctrl => Key::Ctrl(c.to_ascii_lowercase()),
                KeyCode::Char(c) => Key::Char(c),
                KeyCode::Enter => Key::Enter,
                KeyCode::Esc => Key::Esc,
                KeyCode::Tab => Key::Tab,
                KeyCode::BackTab => Key::BackTab,
                KeyCode::Up => Key::Up,
                KeyCode::Down => Key::Down,
                KeyCode::Left => Key::Left,
                KeyCode::Right => Key::Right,
                KeyCode::PageUp => Key::PageUp,
                KeyCode::PageDown => Key::PageDown,
                KeyCode::Home => Key::Home,
                KeyCode::End => Key::End,
                KeyCode::Backspace => Key::Backspace,
                _ => return None,
            })
        }
        Event::Mouse(mouse) => match mouse.kind {
            MouseEventKind::ScrollUp => Some(Key::Up),
            MouseEventKind::ScrollDown => Some(Key::Down),
            _ => None,
        },
        _ => None,
    }
}
