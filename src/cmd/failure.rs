//! How a command ends, and why it could not do what was asked.

use std::io;

use crate::engine::registry::RegistryError;
use crate::engine::store::StoreError;
use crate::ops::admin::AdminError;

/// How the process ends; the numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Fine = 0,
    Failed = 1,
    Usage = 2,
    BadFile = 3,
    NotAsExpected = 4,
    Unreachable = 5,
    Refused = 6,
    NothingMatched = 7,
    AnswerIsNo = 8,
    Interrupted = 130,
}

/// Why a command could not do what was asked, and what to type next.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) exit: Exit,
    pub(super) what: String,
}

impl Failure {
    pub(super) fn new(exit: Exit, what: impl ToString) -> Failure {
        Failure { exit, what: what.to_string() }
    }

    pub(super) fn usage(what: impl ToString) -> Failure {
        Failure::new(Exit::Usage, what)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let exit = match error {
            StoreError::Unreachable { .. }
            | StoreError::Timeout { .. }
            | StoreError::Lost { .. }
            | StoreError::Silent { .. }
            | StoreError::Cut { .. }
            | StoreError::Refused { .. }
            | StoreError::Overloaded { .. }
            | StoreError::Short { .. }
            | StoreError::Broken { .. } => Exit::Unreachable,
            StoreError::OtherCost => Exit::Usage,
        };
        Failure::new(exit, error)
    }
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Failure {
        let exit = match error {
            RegistryError::Store(error) => return error.into(),
            RegistryError::NoReason
            | RegistryError::TooLong { .. }
            | RegistryError::Control(..)
            | RegistryError::Name { .. }
            | RegistryError::NoLimit
            | RegistryError::TooMany { .. } => Exit::Usage,
            RegistryError::Conflict { .. } => Exit::NotAsExpected,
            RegistryError::NoVersion(_) => Exit::NothingMatched,
            RegistryError::Contended(_)
            | RegistryError::Unrecorded(_)
            | RegistryError::Unreadable { .. } => Exit::Failed,
        };
        Failure::new(exit, error)
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Failure {
        let exit = match error {
            AdminError::Address(_) | AdminError::Token => Exit::Usage,
            // What it cannot do with what was typed.
            AdminError::Refused { status: 400 | 422, .. } => Exit::Usage,
            AdminError::Refused { status: 403, .. } => Exit::Refused,
            _ => Exit::Unreachable,
        };
        Failure::new(exit, error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        // A reader that has seen enough is not a failure of ours: `rlctl … | head` ends quietly.
        let quiet = error.kind() == io::ErrorKind::BrokenPipe;
        let what = if quiet { String::new() } else { format!("cannot write: {error}") };
        Failure::new(if quiet { Exit::Fine } else { Exit::Failed }, what)
    }
}
