//! When a connection has to be given up although nobody closed it: a server that is stopped, hung
//! or cut off accepts everything and answers nothing. Pure: told what happened and when.

use std::time::Instant;

/// So many timeouts one after the other, with no reply in between, and the connection is rebuilt.
const TIMEOUTS_IN_A_ROW: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Health {
    timeouts: u32,
    last_timeout: Option<Instant>,
}

impl Health {
    pub(super) fn reply(&mut self) {
        *self = Health::default();
    }

    /// True when the connection has to be rebuilt. Calls that waited together count as one: only
    /// a call that began after the last timeout tells anything new.
    pub(super) fn timeout(&mut self, began: Instant, now: Instant) -> bool {
        if self.last_timeout.is_none_or(|last| began >= last) {
            self.timeouts += 1;
            self.last_timeout = Some(now);
        }
        self.timeouts >= TIMEOUTS_IN_A_ROW
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn three_timeouts_in_a_row_end_a_connection() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut health = Health::default();
        assert!(!health.timeout(at(0), at(50)));
        // A wave that began before the first of it timed out is one sign, not many.
        for began in 1..49 {
            assert!(!health.timeout(at(began), at(50 + began)));
        }
        assert!(!health.timeout(at(60), at(110)));
        assert!(health.timeout(at(111), at(161)));
    }

    #[test]
    fn a_reply_in_between_starts_the_count_again() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut health = Health::default();
        health.timeout(at(0), at(50));
        health.timeout(at(60), at(110));
        health.reply();
        assert!(!health.timeout(at(120), at(170)));
        assert!(!health.timeout(at(180), at(230)));
        assert!(health.timeout(at(240), at(290)));
    }
}
