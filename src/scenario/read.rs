//! From files to scenarios: imports, the matrix, and everything that is wrong with either.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::draft::{Draft, Drafter};
use super::files;
use super::format;
use super::model::{Scenario, Spot};
use super::whole::Whole;
use crate::engine::config::read::{TableShape, found};
use crate::engine::config::source::{ConfigErrors, Finding, Findings, Source, Span};
use crate::engine::config::tree::{self, Entry, Node, Table, Value};

/// Bases of bases of bases: deeper is a circle or a mistake.
const MAX_DEPTH: usize = 8;
const MAX_VARIANTS: usize = 256;

/// Why a file gives no scenarios.
#[derive(Debug)]
pub enum LoadError {
    /// It cannot be read at all.
    Unreadable(String),
    /// Everything that is wrong in it.
    Bad(ConfigErrors),
}

/// The scenarios of one file (one for each choice of its matrix), with warnings.
pub fn load(path: &Path) -> Result<(Vec<Scenario>, Vec<Finding>), LoadError> {
    let shown = path.display().to_string();
    let text = files::read_text(path).map_err(|why| {
        LoadError::Unreadable(format!("{shown}: cannot read the scenario: {why}"))
    })?;
    let mut texts = vec![Loaded { path: path.to_owned(), name: shown, text, importer: None }];
    let failed = import_all(&mut texts);
    let all = Texts { texts: &texts, failed: &failed };
    all.scenarios().map_err(LoadError::Bad)
}

/// Every file that the scenarios of `path` are made of: itself, what it imports, rules, logs. Also of
/// one that is wrong, as far as it can be read, and also those that do not exist.
pub fn sources(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    let Ok(text) = files::read_text(path) else { return found };
    let name = path.display().to_string();
    let mut texts = vec![Loaded { path: path.to_owned(), name, text, importer: None }];
    import_all(&mut texts);
    let all = Texts { texts: &texts, failed: &[] };
    let mut findings = all.findings();
    let parsed = texts.iter().zip(&mut findings);
    let (read, trees): (Vec<&Loaded>, Vec<Node<'_>>) = parsed
        .filter_map(|(loaded, findings)| Some((loaded, tree::parse(&loaded.name, findings)?)))
        .unzip();
    found.extend(texts.iter().map(|loaded| loaded.path.clone()));
    let chosen = combinations(&all.matrix(&trees, &mut findings));
    for (loaded, tree) in read.into_iter().zip(&trees) {
        for chosen in &chosen {
            let mut tree = tree.clone();
            fill(&mut tree, chosen);
            found.extend(named(&tree).map(|name| loaded.folder().join(name)));
        }
    }
    found
}

/// The files that one names.
fn named(tree: &Node<'_>) -> impl Iterator<Item = String> {
    let mut names = Vec::new();
    if let Some(file) = tree.table() {
        names.extend(file.texts("import").map(|text| text.it.to_owned()));
        let limiters = file.table("limiter").map(|all| all.entries.as_slice()).unwrap_or_default();
        let limiters = limiters.iter().map(|entry| (&entry.node, "rules"));
        let changes = file.list("change").iter().map(|node| (node, "rules"));
        let traffic = file.list("traffic").iter().map(|node| (node, "log"));
        for (node, key) in limiters.chain(changes).chain(traffic) {
            let text = node.table().and_then(|table| table.text(key));
            names.extend(text.map(|text| text.it.to_owned()));
        }
    }
    names.into_iter()
}

/// One scenario from a text, as if it stood in a file of that name; it can import nothing.
pub fn parse(name: &str, text: &str) -> Result<(Vec<Scenario>, Vec<Finding>), ConfigErrors> {
    let loaded = Loaded { path: name.into(), name: name.into(), text: text.into(), importer: None };
    Texts { texts: &[loaded], failed: &[] }.scenarios()
}

/// A file, and whose import it is.
struct Loaded {
    path: PathBuf,
    name: String,
    text: String,
    importer: Option<usize>,
}

impl Loaded {
    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

/// Reads what files import, in breadth; those that could not be read are given back.
fn import_all(texts: &mut Vec<Loaded>) -> Vec<(Spot, String)> {
    let mut failed = Vec::new();
    let mut next = 0;
    while next < texts.len() {
        let depth = std::iter::successors(texts[next].importer, |at| texts[*at].importer).count();
        for (named, span) in imports_of(&texts[next]) {
            let spot = Spot { file: next, span };
            let path = texts[next].folder().join(&named);
            let own = |loaded: &Loaded| loaded.path == path;
            if depth >= MAX_DEPTH
                || std::iter::successors(Some(next), |at| texts[*at].importer)
                    .any(|at| own(&texts[at]))
            {
                failed.push((spot, format!("`{named}` imports itself in the end")));
                continue;
            }
            match files::read_text(&path) {
                Ok(text) => {
                    let name = path.display().to_string();
                    texts.push(Loaded { path, name, text, importer: Some(next) });
                }
                Err(why) => failed.push((spot, format!("cannot read `{named}`: {why}"))),
            }
        }
        next += 1;
    }
    failed
}

fn imports_of(loaded: &Loaded) -> Vec<(String, Span)> {
    let mut findings = Findings::in_source(Source::new(&loaded.name, &loaded.text));
    let Some(root) = tree::parse(&loaded.name, &mut findings) else { return Vec::new() };
    let Some(table) = root.table() else { return Vec::new() };
    table.texts("import").map(|text| (text.it.to_owned(), text.span)).collect()
}

struct Texts<'t> {
    texts: &'t [Loaded],
    failed: &'t [(Spot, String)],
}

type Chosen<'t> = Vec<(String, Value<'t>, String)>;

impl<'t> Texts<'t> {
    fn scenarios(&self) -> Result<(Vec<Scenario>, Vec<Finding>), ConfigErrors> {
        let mut findings = self.findings();
        let trees: Vec<Option<Node<'t>>> = self
            .texts
            .iter()
            .zip(&mut findings)
            .map(|(loaded, findings)| tree::parse(&loaded.name, findings))
            .collect();
        for (spot, why) in self.failed {
            findings[spot.file].error(
                spot.span,
                why.clone(),
                "paths count from the file's own folder",
            );
        }
        if findings.iter().any(Findings::has_errors) {
            return Err(merged(findings).expect_err("there are errors"));
        }
        let trees: Vec<Node<'t>> = trees.into_iter().flatten().collect();
        let matrix = self.matrix(&trees, &mut findings);
        if findings.iter().any(Findings::has_errors) {
            return Err(merged(findings).expect_err("there are errors"));
        }
        let (mut scenarios, mut warnings) = (Vec::new(), Vec::new());
        for (number, chosen) in combinations(&matrix).into_iter().enumerate() {
            let (scenario, found) = self.scenario(&trees, chosen)?;
            scenarios.push(scenario);
            if number == 0 {
                warnings = found;
            }
        }
        Ok((scenarios, warnings))
    }

    fn findings(&self) -> Vec<Findings<'t>> {
        let each = self.texts.iter();
        each.map(|loaded| Findings::in_source(Source::new(&loaded.name, &loaded.text))).collect()
    }

    /// The values of every key of every matrix.
    fn matrix(
        &self,
        trees: &[Node<'t>],
        findings: &mut [Findings<'t>],
    ) -> Vec<(String, Vec<(Value<'t>, String)>)> {
        let mut matrix = Vec::new();
        let mut variants = 1;
        for (tree, findings) in trees.iter().zip(findings) {
            let Some(table) = tree.table().and_then(|file| file.table("matrix")) else { continue };
            for entry in &table.entries {
                let Value::List(items) = &entry.node.value else {
                    let message =
                        format!("`{}` wants a list, found {}", entry.key, found(&entry.node.value));
                    findings.error(
                        entry.node.span,
                        message,
                        "e.g. algorithm = [\"gcra\", \"fixed-window\"]",
                    );
                    continue;
                };
                let mut values = Vec::new();
                for item in items {
                    match shown(&item.value) {
                        Some(shown) => values.push((item.value.clone(), shown)),
                        None => {
                            let hint = "text, numbers, true and false can be chosen from";
                            findings.error(item.span, "this cannot be chosen", hint);
                        }
                    }
                }
                variants *= values.len();
                if values.is_empty() || variants > MAX_VARIANTS {
                    let message = match values.is_empty() {
                        true => format!("`{}` leaves nothing to choose", entry.key),
                        false => format!("the matrix has more than {MAX_VARIANTS} choices"),
                    };
                    findings.error(entry.node.span, message, "list a few values");
                    return Vec::new();
                }
                if !is_used(&entry.key, trees) {
                    let message = format!("`{}` changes nothing", entry.key);
                    let hint = "name a key of a limiter or of the store, or write ${NAME} somewhere in a text";
                    findings.error(entry.key_span, message, hint);
                }
                matrix.push((entry.key.as_ref().to_owned(), values));
            }
        }
        matrix
    }

    fn scenario(
        &self,
        trees: &[Node<'t>],
        chosen: Chosen<'t>,
    ) -> Result<(Scenario, Vec<Finding>), ConfigErrors> {
        let mut findings = self.findings();
        let mut drafts: Vec<Draft> = Vec::new();
        for (file, loaded) in self.texts.iter().enumerate() {
            let mut tree = trees[file].clone();
            fill(&mut tree, &chosen);
            add_chosen(&mut tree, &chosen);
            let findings = &mut findings[file];
            let folder = loaded.folder();
            drafts.push(Drafter { file, folder, findings }.draft(&tree));
        }
        // Those that are imported come first; whoever imports has the last word.
        let draft = drafts.into_iter().rev().reduce(Draft::over).unwrap_or_default();
        let variant = chosen.into_iter().map(|(key, _, shown)| (key, shown)).collect();
        if findings.iter().any(Findings::has_errors) {
            return Err(merged(findings).expect_err("there are errors"));
        }
        let mut whole = Whole { files: &mut findings, main: 0 };
        let scenario = whole.scenario(&self.texts[0].path, draft, variant);
        let warnings = merged(findings)?;
        let scenario = scenario.expect("without an error there is a scenario");
        Ok((scenario, warnings))
    }
}

impl Draft {
    /// What the base says, and what the other says instead or besides.
    fn over(base: Draft, other: Draft) -> Draft {
        fn join<T>(mut base: Vec<T>, other: Vec<T>) -> Vec<T> {
            base.extend(other);
            base
        }
        let mut limiters = base.limiters;
        for limiter in other.limiters {
            match limiters.iter_mut().find(|known| known.name == limiter.name) {
                Some(known) => *known = limiter,
                None => limiters.push(limiter),
            }
        }
        let mut expectations = base.expectations;
        for (one, spot) in other.expectations {
            match expectations.iter_mut().find(|(known, _)| known.name == one.name) {
                Some(known) => *known = (one, spot),
                None => expectations.push((one, spot)),
            }
        }
        Draft {
            name: other.name.or(base.name),
            description: other.description.or(base.description),
            tags: join(base.tags, other.tags),
            seed: other.seed.or(base.seed),
            run: other.run.or(base.run),
            clock: other.clock.or(base.clock),
            store: other.store.or(base.store),
            traffic: join(base.traffic, other.traffic),
            limiters,
            faults: join(base.faults, other.faults),
            changes: join(base.changes, other.changes),
            expectations,
        }
    }
}

/// All warnings, or all errors.
fn merged(findings: Vec<Findings<'_>>) -> Result<Vec<Finding>, ConfigErrors> {
    let (mut warnings, mut errors, mut more) = (Vec::new(), Vec::new(), 0);
    for findings in findings {
        match findings.result(()) {
            Ok(((), found)) => warnings.extend(found),
            Err(found) => {
                errors.extend(found.errors);
                more += found.more;
            }
        }
    }
    if errors.is_empty() { Ok(warnings) } else { Err(ConfigErrors { errors, more }) }
}

fn shown(value: &Value<'_>) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.as_ref().to_owned()),
        Value::Flag(flag) => Some(flag.to_string()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn combinations<'t>(matrix: &[(String, Vec<(Value<'t>, String)>)]) -> Vec<Chosen<'t>> {
    let start: Vec<Chosen<'t>> = vec![Vec::new()];
    matrix.iter().fold(start, |all, (key, values)| {
        let with = |chosen: &Chosen<'t>| {
            let each = values.iter().map(|(value, shown)| {
                let mut longer = chosen.clone();
                longer.push((key.clone(), value.clone(), shown.clone()));
                longer
            });
            each.collect::<Vec<_>>()
        };
        all.iter().flat_map(with).collect()
    })
}

/// The keys that a choice sets by its name alone.
fn sets(key: &str) -> Option<&'static str> {
    let of = |shape: &TableShape| shape.fields.iter().any(|field| field.key == key);
    match key {
        "seed" | "run" => Some(""),
        _ if of(&format::LIMITER) => Some("limiter"),
        _ if of(&format::STORE) => Some("store"),
        _ => None,
    }
}

fn is_used(key: &str, trees: &[Node<'_>]) -> bool {
    let placeholder = format!("${{{key}}}");
    sets(key).is_some() || trees.iter().any(|tree| contains(tree, &placeholder))
}

fn contains(node: &Node<'_>, words: &str) -> bool {
    match &node.value {
        Value::Text(text) => text.contains(words),
        Value::List(items) => items.iter().any(|item| contains(item, words)),
        Value::Table(table) => table.entries.iter().any(|entry| contains(&entry.node, words)),
        _ => false,
    }
}

/// Puts the chosen values in place of `${NAME}`; a text that is nothing else becomes the value.
fn fill<'t>(node: &mut Node<'t>, chosen: &Chosen<'t>) {
    match &mut node.value {
        Value::Text(text) => {
            let whole = chosen.iter().find(|(key, ..)| *text == format!("${{{key}}}"));
            if let Some((_, value, _)) = whole {
                node.value = value.clone();
                return;
            }
            for (key, _, shown) in chosen {
                let placeholder = format!("${{{key}}}");
                if text.contains(&placeholder) {
                    *text = Cow::Owned(text.replace(&placeholder, shown));
                }
            }
        }
        Value::List(items) => items.iter_mut().for_each(|item| fill(item, chosen)),
        Value::Table(table) => {
            table.entries.iter_mut().for_each(|entry| fill(&mut entry.node, chosen));
        }
        _ => {}
    }
}

/// Sets the keys that a choice names, where the file does not.
fn add_chosen<'t>(root: &mut Node<'t>, chosen: &Chosen<'t>) {
    let Value::Table(file) = &mut root.value else { return };
    for (key, value, _) in chosen {
        let add = |table: &mut Table<'t>, span: Span| {
            if table.get(key).is_none() {
                let node = Node { span, value: value.clone() };
                table.entries.push(Entry { key: Cow::Owned(key.clone()), key_span: span, node });
            }
        };
        match sets(key) {
            Some("") => add(file, Span::default()),
            Some("store") => {
                if let Some(entry) = file.entries.iter_mut().find(|e| e.key == "store")
                    && let Value::Table(store) = &mut entry.node.value
                {
                    add(store, entry.key_span);
                }
            }
            Some(_) => {
                let limiters = file.entries.iter_mut().find(|e| e.key == "limiter");
                let Some(Value::Table(limiters)) = limiters.map(|entry| &mut entry.node.value)
                else {
                    continue;
                };
                for entry in &mut limiters.entries {
                    if let Value::Table(limiter) = &mut entry.node.value
                        && limiter.get("rules").is_none()
                    {
                        add(limiter, entry.key_span);
                    }
                }
            }
            None => {}
        }
    }
    if let Some(at) = file.entries.iter().position(|entry| entry.key == "matrix") {
        file.entries.remove(at);
    }
}
