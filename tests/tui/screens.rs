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
