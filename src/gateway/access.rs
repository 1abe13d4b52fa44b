//! Who may ask a gateway, and change what it does: bearer tokens from a file, or without one
//! whoever is on this machine.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Cost, Limit, Quota};
use crate::engine::store::{Check, MemoryStore, RuleLimit};

pub const READS_PER_MINUTE: u64 = 1_000;
pub const WRITES_PER_MINUTE: u64 = 100;

/// Shorter ones can be guessed.
const MIN_TOKEN_BYTES: usize = 16;
const MAX_NAME_BYTES: usize = 100;
/// Looked through for every request.
const MAX_TOKENS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Read,
    Write,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub name: Arc<str>,
    pub role: Role,
}

/// Why somebody may not ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("a token is needed: send Authorization: Bearer TOKEN")]
    NoToken,
    #[error("nobody here knows this token")]
    WrongToken,
    #[error("without a token file only this machine may ask")]
    NotLocal,
}

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("cannot read the token file {path}: {why}")]
    Unreadable { path: String, why: std::io::Error },
    #[error("{path}:{line}: {why}")]
    Line { path: String, line: usize, why: &'static str },
    #[error(
        "{0} has no tokens; write one `role token [name]` per line, e.g. write {example} alice",
        example = "\u{2026}"
    )]
    Empty(String),
}

/// Who is known, and how much each has asked.
#[derive(Debug)]
pub struct Access {
    /// None: whoever is on this machine.
    tokens: Option<Vec<Token>>,
    asked: MemoryStore,
    reads: [Arc<RuleLimit>; 1],
    writes: [Arc<RuleLimit>; 1],
}

#[derive(Debug)]
struct Token {
    digest: [u8; 32],
    caller: Caller,
}

impl Access {
    /// Without tokens: whoever is on this machine may do everything, under the name `local`.
    pub fn local() -> Access {
        Access::with(None)
    }

    /// The tokens of a file; and a warning if others than its owner can read it.
    pub fn from_file(path: &Path) -> Result<(Access, Option<String>), AccessError> {
        let name = path.display().to_string();
        let unreadable = |why| AccessError::Unreadable { path: name.clone(), why };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let access = Access::from_text(&name, &text)?;
        let warning = is_open_to_all(path)
            .then(|| format!("{name} can be read by everybody on this machine; chmod 600 it"));
        Ok((access, warning))
    }

    /// One `role token [name]` per line; `#` begins a comment.
    pub fn from_text(path: &str, text: &str) -> Result<Access, AccessError> {
        let mut tokens: Vec<Token> = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let wrong = |why| AccessError::Line { path: path.into(), line: number, why };
            let Some(token) = read_line(line, number).map_err(wrong)? else { continue };
            if tokens.iter().any(|other| other.digest == token.digest) {
                return Err(wrong("this token is given twice"));
            }
            tokens.push(token);
            if tokens.len() > MAX_TOKENS {
                return Err(wrong("there are more than 10000 tokens"));
            }
        }
        if tokens.is_empty() {
            return Err(AccessError::Empty(path.into()));
        }
        Ok(Access::with(Some(tokens)))
    }

    fn with(tokens: Option<Vec<Token>>) -> Access {
        Access {
            tokens,
            asked: MemoryStore::new(2 * MAX_TOKENS),
            reads: [per_minute("reads", READS_PER_MINUTE)],
            writes: [per_minute("writes", WRITES_PER_MINUTE)],
        }
    }

    /// Whether only this machine may ask.
    pub fn is_local(&self) -> bool {
        self.tokens.is_none()
    }

    /// Who asks, by its `Authorization` header or its address.
    pub fn caller(
        &self,
        peer: Option<IpAddr>,
        authorization: Option<&[u8]>,
    ) -> Result<Caller, Denied> {
        let Some(tokens) = &self.tokens else {
            let is_local = peer.is_some_and(|peer| peer.to_canonical().is_loopback());
            let caller = Caller { name: "local".into(), role: Role::Write };
            return if is_local { Ok(caller) } else { Err(Denied::NotLocal) };
        };
        let token = authorization.and_then(bearer).ok_or(Denied::NoToken)?;
        let digest: [u8; 32] = Sha256::digest(token).into();
        // All are compared, whichever it is: the time taken tells nothing.
        let mut found = u32::MAX;
        for (known, place) in tokens.iter().zip(0u32..) {
            found.conditional_assign(&place, known.digest.ct_eq(&digest));
        }
        let known = usize::try_from(found).ok().and_then(|place| tokens.get(place));
        known.map(|known| known.caller.clone()).ok_or(Denied::WrongToken)
    }

    /// Counts one more request of `caller`; how long to wait when there were too many.
    pub fn count(&self, caller: &Caller, role: Role, now: Micros) -> Result<(), Micros> {
        let limits = match role {
            Role::Read => &self.reads,
            Role::Write => &self.writes,
        };
        let Ok(identity) = Identity::opaque(&caller.name) else { return Ok(()) };
        let check = Check {
            identity: &identity,
            limits,
            cost: Cost::ONE,
            idempotency: None,
            at: Some(now),
        };
        match self.asked.check(&check) {
            Ok(answer) if !answer.allowed() => {
                let wait = answer.deciding().and_then(|(_, decision)| decision.retry_after);
                Err(wait.unwrap_or(Micros::MINUTE))
            }
            _ => Ok(()),
        }
    }
}

fn per_minute(name: &str, requests: u64) -> Arc<RuleLimit> {
    let quota = Quota { requests, period: Micros::MINUTE, burst: None };
    let limit = Limit::new(Algorithm::TokenBucket, quota).expect("it is within range");
    Arc::new(RuleLimit::new(name, 0, limit))
}

fn read_line(line: &str, number: usize) -> Result<Option<Token>, &'static str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let role = match words.next() {
        Some("read") => Role::Read,
        Some("write") => Role::Write,
        _ => return Err("the first word is the role: read or write"),
    };
    let token = words.next().ok_or("the second word is the token")?;
    if token.len() < MIN_TOKEN_BYTES {
        return Err("a token has at least 16 characters, or it can be guessed");
    }
    let name: Arc<str> = match words.next().filter(|word| !word.starts_with('#')) {
        Some(name) if name.len() > MAX_NAME_BYTES => return Err("a name has at most 100 bytes"),
        Some(name) if name.chars().any(char::is_control) => {
            return Err("a name has no control characters");
        }
        Some("local") => return Err("`local` is who needs no token; take another name"),
        Some(name) => name.into(),
        None => format!("token {number}").into(),
    };
    let digest = Sha256::digest(token.as_bytes()).into();
    Ok(Some(Token { digest, caller: Caller { name, role } }))
}

/// The token of `Bearer TOKEN`; the scheme in any case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(unix)]
fn is_open_to_all(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn is_open_to_all(_path: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# who may ask\nread  reader-token-0001  grafana # for the board\n\nwrite writer-token-0001 alice\nwrite unnamed-token-001\n";

    fn ask(access: &Access, header: &str) -> Result<(String, Role), Denied> {
        let caller = access.caller(None, Some(header.as_bytes()))?;
        Ok((caller.name.to_string(), caller.role))
    }

    #[test]
    fn tokens_have_names_and_roles() {
        let access = Access::from_text("tokens", FILE).unwrap();
        assert_eq!(ask(&access, "Bearer reader-token-0001"), Ok(("grafana".into(), Role::Read)));
        assert_eq!(ask(&access, "bearer  writer-token-0001"), Ok(("alice".into(), Role::Write)));
        assert_eq!(ask(&access, "Bearer unnamed-token-001"), Ok(("token 5".into(), Role::Write)));
        assert_eq!(ask(&access, "Bearer writer-token-0002"), Err(Denied::WrongToken));
        for none in ["", "Bearer", "Bearer ", "Basic reader-token-0001", "reader-token-0001"] {
            assert_eq!(ask(&access, none), Err(Denied::NoToken), "{none}");
        }
        let here = Some("127.0.0.1".parse().unwrap());
        assert_eq!(access.caller(here, None), Err(Denied::NoToken), "also from this machine");
    }

    #[test]
    fn without_tokens_only_this_machine_may_ask() {
        let access = Access::local();
        for (peer, may) in [("127.0.0.1", true), ("::1", true), ("::ffff:127.0.0.9", true)] {
            assert_eq!(access.caller(peer.parse().ok(), None).is_ok(), may, "{peer}");
        }
        assert_eq!(access.caller("192.0.2.1".parse().ok(), None), Err(Denied::NotLocal));
        assert_eq!(access.caller(None, None), Err(Denied::NotLocal));
    }

    #[test]
    fn what_is_wrong_with_a_token_file_is_told_with_its_line() {
        for (text, wrong) in [
            ("admin reader-token-0001", "tokens:1: the first word is the role"),
            ("\nread", "tokens:2: the second word is the token"),
            ("read short", "tokens:1: a token has at least 16"),
            ("read reader-token-0001 local", "tokens:1: `local`"),
            ("read reader-token-0001\nwrite reader-token-0001", "tokens:2: this token is given"),
            ("# nothing", "tokens has no tokens"),
        ] {
            let error = Access::from_text("tokens", text).unwrap_err().to_string();
            assert!(error.starts_with(wrong), "{error}");
        }
    }

    #[test]
    fn each_may_ask_so_often_a_minute() {
        let access = Access::local();
        let of = |name: &str| Caller { name: name.into(), role: Role::Write };
        let now = Micros::DAY;
        for _ in 0..WRITES_PER_MINUTE {
            assert_eq!(access.count(&of("a"), Role::Write, now), Ok(()));
        }
        assert_eq!(access.count(&of("a"), Role::Write, now), Err(Micros(600_000)));
        assert_eq!(access.count(&of("a"), Role::Read, now), Ok(()), "reads are counted apart");
        assert_eq!(access.count(&of("b"), Role::Write, now), Ok(()), "and so are others");
        assert_eq!(access.count(&of("a"), Role::Write, now + Micros(600_000)), Ok(()));
    }
}
