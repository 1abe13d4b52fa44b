//! Pictures: every screen at every size, as it was drawn when somebody last looked at it closely.
//! `RLCTL_UPDATE=1` draws them anew; then look at what has changed.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use rlctl::tui::data::{Snapshot, Who};
use rlctl::tui::keys::{KEYS, Key};
use rlctl::tui::model::{Message, Model};
use rlctl::tui::term::picture;
use rlctl::tui::timeline::Timeline;

use super::{options, press, watching};

const SIZES: [(u16, u16); 5] = [(120, 40), (80, 24), (60, 15), (20, 5), (1, 1)];

fn same_as_before(name: &str, drawn: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tui/pictures");
    let path = folder.join(format!("{name}.txt"));
    if std::env::var_os("RLCTL_UPDATE").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, drawn).unwrap();
    }
    let before = fs::read_to_string(&path).unwrap_or_default();
    assert!(before == drawn, "{} is another picture now:\n{drawn}", path.display());
}

#[test]
fn every_screen_at_every_size() {
    for (screen, story, seconds, keys) in [
        ("overview-quiet", "incident", 8, ""),
        ("overview-traffic", "incident", 20, ""),
        ("overview-redis", "failover", 20, ""),
        ("overview-recovered", "failover", 40, ""),
        ("identity", "incident", 20, "<enter>"),
        ("keys", "incident", 20, ":keys<enter>"),
        ("rules", "incident", 20, ":rules<enter>"),
        ("shards", "failover", 20, ":shards<enter>"),
        ("events", "failover", 20, ":events<enter>"),
        ("help", "incident", 8, "?"),
        ("question", "incident", 20, "W2"),
    ] {
        let (known, mut model) = watching(story, seconds);
        press(&mut model, keys);
        model.update(Message::Detail(Box::new(known)));
        for (width, height) in SIZES {
            let drawn = picture(&model, width, height);
            same_as_before(&format!("{screen}-{width}x{height}"), &drawn);
        }
    }
}

/// Pictures in the documents are those that were looked at.
#[test]
fn the_documents_show_what_is_drawn() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(folder.join(path)).unwrap();
    for (document, name) in [
        ("README.md", "overview-redis-80x24"),
        ("docs/dashboard.md", "overview-traffic-80x24"),
        ("docs/dashboard.md", "shards-80x24"),
    ] {
        let picture = read(&format!("tests/tui/pictures/{name}.txt"));
        assert!(read(document).contains(picture.trim_end()), "{document} does not have {name}");
    }
}

/// The lines between a pane's title and its lower edge, without what is beside it.
fn pane(drawn: &str, title: &str, column: usize) -> Vec<String> {
    let from = drawn.lines().skip_while(|line| !line.contains(title)).skip(1);
    let inside = from.map(|line| line.chars().skip(column).collect::<String>());
    inside.take_while(|line| !line.starts_with('+')).collect()
}

#[test]
fn what_to_do_is_told_in_full_where_there_is_room() {
    let (_, mut model) = watching("failover", 20);
    let text = "protect again: let rule per-customer-and-endpoint fail LOCAL".to_string();
    model.verdict.advice[0].text = text.clone();
    let told = pane(&picture(&model, 120, 40), "WHAT TO DO", 62);
    let words = |lines: &[String]| {
        let all = lines.join(" ").replace('|', " ");
        all.split_whitespace().map(String::from).collect::<Vec<_>>().join(" ")
    };
    assert!(words(&told).contains(&format!("1 {text} (write mode) 2 ")), "{told:#?}");
    // Where there is none, each keeps its line.
    let told = pane(&picture(&model, 80, 24), "WHAT TO DO", 0);
    assert_eq!(told.len(), model.verdict.advice.len(), "{told:#?}");
}

#[test]
fn rows_that_are_not_seen_are_counted() {
    let mut model = Model::new(options(), Timeline::default());
    let mut now = Snapshot::clone(watching("incident", 20).1.shown().unwrap());
    let who = |n: usize| Who { identity: format!("user:{n}"), ..now.rejected[0].clone() };
    now.rejected = (0..60).map(who).collect();
    model.update(Message::Moment(Box::new(now)));
    let told = pane(&picture(&model, 120, 40), "WHO is refused", 0);
    let seen = told.iter().filter(|line| line.contains("user:")).count();
    assert!(told.last().unwrap().contains(&format!("({} more)", 60 - seen)), "{told:#?}");
    // The last one can still be reached.
    press(&mut model, "G");
    let told = pane(&picture(&model, 120, 40), "WHO is refused", 0);
    assert!(told.iter().any(|line| line.contains(">user:59")), "{told:#?}");
}

#[test]
fn states_have_words_not_only_colours() {
    let (_, mut model) = watching("failover", 20);
    let overview = picture(&model, 120, 40);
    for word in ["LIMITS ARE NOT ENFORCED", "DOWN", "OPEN 4/4", "FAIL-OPEN", "CRIT"] {
        assert!(overview.contains(word), "{word}:\n{overview}");
    }
    press(&mut model, " ");
    assert!(picture(&model, 80, 24).contains("PAUSED"));
    press(&mut model, " W");
    assert!(picture(&model, 80, 24).contains("[WRITE]"));
}

#[test]
fn ascii_is_ascii() {
    for keys in ["", ":keys<enter>", ":rules<enter>", ":shards<enter>", ":events<enter>", "?"] {
        let (_, mut model) = watching("failover", 20);
        press(&mut model, keys);
        let drawn = picture(&model, 120, 40);
        assert!(drawn.is_ascii(), "{drawn}");
        model.ascii = false;
        assert!(!picture(&model, 120, 40).is_ascii());
    }
}

/// Names as an attacker would choose them.
fn hostile() -> Snapshot {
    let (_, model) = watching("incident", 20);
    let mut now = Snapshot::clone(model.shown().unwrap());
    let names = [
        "user:\u{1b}[2J\u{1b}]0;owned\u{7}",
        "user:\u{202e}resu",
        "user:a\r\nb\tc",
        "user:\u{9b}31m",
        "user:日本語日本語日本語日本語日本語日本語日本語日本語日本語",
        "user:e\u{301}\u{301}\u{301}\u{200d}\u{fe0f}",
    ];
    let who = |name: &&str| Who { identity: (*name).into(), share: 0.1, ..now.rejected[0].clone() };
    now.rejected = names.iter().map(who).collect();
    now.seen = now.rejected.clone();
    now.rules[0].name = names[0].into();
    now.shards[0].name = names[1].into();
    now.events[0].text = names[0].into();
    now.events[0].who = Some(names[2].into());
    now.policy.refused = Some(names[0].into());
    now.sources[0].trouble = Some(names[3].into());
    now
}

#[test]
fn names_that_attack_the_terminal_are_drawn_escaped() {
    for keys in [
        "",
        "<enter>",
        ":keys<enter>",
        ":rules<enter>",
        ":shards<enter>",
        ":events<enter>",
        "/user:\u{1b}",
        "WB",
    ] {
        let mut model = Model::new(options(), Timeline::default());
        model.update(Message::Moment(Box::new(hostile())));
        press(&mut model, keys);
        for (width, height) in SIZES {
            let drawn = picture(&model, width, height);
            let bad = drawn.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
            assert_eq!(bad, None, "{keys}\n{drawn:?}");
        }
    }
}

fn any_key() -> impl Strategy<Value = Key> {
    let known: Vec<Key> = KEYS.iter().flat_map(|binding| binding.keys).copied().collect();
    prop_oneof![
        8 => proptest::sample::select(known),
        2 => any::<char>().prop_map(Key::Char),
        1 => Just(Key::Enter),
        1 => Just(Key::Esc),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_keys_at_any_size_do_no_harm(
        keys in proptest::collection::vec(any_key(), 0..40),
        width in 0u16..200,
        height in 0u16..60,
        kind in 0u8..3,
    ) {
        let mut model = match kind {
            0 => Model::new(options(), Timeline::default()),
            1 => {
                let mut model = Model::new(options(), Timeline::default());
                model.update(Message::Moment(Box::new(hostile())));
                model
            }
            _ => {
                let (_, mut model) = watching("failover", 20);
                model.write = true;
                model
            }
        };
        for key in keys {
            model.update(Message::Key(key));
            picture(&model, width, height);
        }
    }
}
