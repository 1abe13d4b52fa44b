//! What keys do, without drawing anything.

use rlctl::tui::act::Act;
use rlctl::tui::keys::KEYS;
use rlctl::tui::model::{Effect, Message, Pane, Permission, Screen};

use super::{press, watching, watching_on};

#[test]
fn drill_down_and_back() {
    let (known, mut model) = watching("incident", 20);
    let effects = press(&mut model, "<enter>");
    let who = "apikey:ak_7f3c2".to_string();
    assert_eq!(model.screen, Screen::Identity(who.clone()));
    assert_eq!(effects, [Effect::Look(who.clone())]);
    model.update(Message::Detail(Box::new(known)));
    let detail = model.detail.clone().unwrap();
    assert_eq!(detail.limits[0].rule, "search");
    assert_eq!(detail.limits[0].remaining, Some(0));
    press(&mut model, "<esc>");
    assert_eq!(model.screen, Screen::Overview);
    press(&mut model, ":shar<enter>");
    assert_eq!(model.screen, Screen::Shards);
    press(&mut model, "h");
    assert_eq!(model.screen, Screen::Rules);
}

#[test]
fn a_filter_narrows_while_it_is_typed_and_esc_clears_it() {
    let (_, mut model) = watching("incident", 20);
    press(&mut model, ":keys<enter>");
    let all = model.names().len();
    press(&mut model, "/biz-");
    let some = model.names();
    assert!(some.len() < all && some.iter().all(|name| name.contains("biz-")), "{some:?}");
    press(&mut model, "<enter>");
    assert_eq!(model.filter.text(), "biz-");
    press(&mut model, "<esc>");
    assert_eq!(model.names().len(), all);
    press(&mut model, "/!cust<enter>");
    assert!(model.names().iter().all(|name| !name.contains("cust")));
}

#[test]
fn pause_stops_the_picture_while_data_keeps_arriving() {
    let (mut demo, mut model) = watching_on("incident", 20);
    let then = model.shown().unwrap().at_us;
    press(&mut model, " ");
    (0..5).for_each(|_| {
        model.update(Message::Moment(Box::new(demo.tick())));
    });
    assert_eq!(model.shown().unwrap().at_us, then);
    assert_eq!(model.timeline.behind_us(), 5_000_000);
    press(&mut model, "[[");
    assert_eq!(model.shown().unwrap().at_us, then - 2_000_000);
    // Ten seconds back nothing was wrong yet, and the verdict is that of then.
    press(&mut model, "[[[[[[[[[[[[");
    assert!(model.verdict.headline.starts_with("NOTHING WRONG"), "{}", model.verdict.headline);
    press(&mut model, "L");
    assert!(model.timeline.is_live());
    assert!(model.verdict.headline.starts_with("TRAFFIC"));
}

#[test]
fn nothing_changes_without_write_mode_and_a_yes() {
    let (_, mut model) = watching("incident", 20);
    let acts = |effects: Vec<Effect>| effects.iter().any(|e| matches!(e, Effect::Act(_)));
    assert!(!acts(press(&mut model, "2")), "the second is to block it");
    assert!(model.asking.is_some());
    assert!(!acts(press(&mut model, "y")));
    assert!(model.asking.is_some(), "read-only: the plan stays, and does nothing");
    assert!(model.noted().unwrap().contains("W allows changes"), "{:?}", model.noted());
    assert!(acts(press(&mut model, "Wy")), "and can be allowed where it stands");
    press(&mut model, "W");
    assert!(!model.write);
    assert!(!acts(press(&mut model, "W2n")), "no is no");
    assert!(!acts(press(&mut model, "2<enter>")), "and so is just going on");
    let effects = press(&mut model, "2y");
    let block = Act::Block { identity: "apikey:ak_7f3c2".into() };
    assert_eq!(effects, [Effect::Act(block)]);
    let effects = press(&mut model, "Ry");
    assert!(acts(effects));
    let effects = press(&mut model, "Oy");
    assert!(
        matches!(&effects[..], [Effect::Act(Act::Override { limit, .. })] if limit == "24000/1m")
    );
    let effects = press(&mut model, ":rules<enter>My");
    assert!(matches!(&effects[..], [Effect::Act(Act::Mode { mode: "local", .. })]), "{effects:?}");
    let effects = press(&mut model, ":mode policy<enter>y");
    assert!(matches!(&effects[..], [Effect::Act(Act::Mode { mode: "policy", .. })]), "{effects:?}");
    assert_eq!(press(&mut model, ":mode nonsense<enter>"), []);
    assert!(model.asking.is_none() && model.noted().unwrap().contains("policy"));
}

#[test]
fn a_protected_context_wants_its_name_typed() {
    let (_, mut model) = watching("incident", 20);
    model.options.permission = Permission::Protected("prod".into());
    assert_eq!(press(&mut model, "WBprox<enter>"), []);
    assert!(model.asking.is_none());
    let effects = press(&mut model, "Bprod<enter>");
    assert!(matches!(&effects[..], [Effect::Act(Act::Block { .. })]));
    model.options.permission = Permission::Never("readonly".into());
    press(&mut model, "WW");
    assert!(model.write, "it was on before; in real life it never is");
    model.write = false;
    press(&mut model, "W");
    assert!(!model.write);
}

#[test]
fn what_is_shown_can_be_copied() {
    let (_, mut model) = watching("incident", 20);
    model.options.at.redis = Some("--context prod".into());
    let copied = |effects: Vec<Effect>| match &effects[..] {
        [Effect::Copy(text)] => text.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        copied(press(&mut model, "y")),
        "rlctl inspect apikey:ak_7f3c2 --explain --context prod"
    );
    let block = copied(press(&mut model, "2c"));
    assert!(block.starts_with("rlctl block apikey:ak_7f3c2 --for 15m --reason"), "{block}");
}

#[test]
fn sorting_keeps_the_mark_on_its_row() {
    let (_, mut model) = watching("incident", 20);
    press(&mut model, ":keys<enter>jjj");
    let marked = model.marked_name().unwrap();
    press(&mut model, "sss");
    assert_eq!(model.marked_name().unwrap(), marked);
    let names = model.names();
    assert!(names.is_sorted(), "{names:?}");
    press(&mut model, "S");
    assert!(model.names().iter().rev().is_sorted());
}

#[test]
fn panes_help_themes_and_the_end() {
    let (_, mut model) = watching("incident", 20);
    press(&mut model, "<tab><tab><tab>");
    assert_eq!(model.pane, Pane::Todo);
    press(&mut model, "?jjj");
    assert_eq!(model.help, Some(3));
    for other in ["x", "q", "?", "<esc>", "<enter>"] {
        model.help = Some(0);
        assert_eq!(press(&mut model, other), [], "{other} only closes the help");
        assert_eq!(model.help, None, "{other}");
    }
    model.options.no_color = true;
    let theme = model.theme;
    press(&mut model, "t:theme dark<enter>");
    assert_eq!(model.theme, theme, "NO_COLOR wins");
    assert_eq!(press(&mut model, "q"), [Effect::Quit { keep: false }]);
    assert_eq!(press(&mut model, ":q<enter>"), [Effect::Quit { keep: false }]);
    assert_eq!(press(&mut model, "Q"), [Effect::Quit { keep: true }]);
    assert_eq!(press(&mut model, "<ctrl-c>"), [Effect::Interrupt]);
    assert_eq!(press(&mut model, "?<ctrl-c>"), [Effect::Interrupt], "also out of the help");
    model.help = None;
    assert_eq!(press(&mut model, ":nonsense<enter>"), []);
    assert!(model.noted().unwrap().contains("nonsense"));
    assert!(KEYS.iter().all(|binding| !binding.what.is_empty()));
}
