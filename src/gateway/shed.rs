//! Checks that others ask for are taken on up to so many a second: beyond it they are refused at
//! once, so that those taken on are still answered in time.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Gateway;
use crate::engine::clock::Micros;
use crate::engine::policy::GatewaySettings;

#[derive(Debug, Default)]
pub struct Shed {
    /// The second of the clock (upper half), and how many were taken on in it (lower half).
    second: AtomicU64,
}

impl Shed {
    /// Whether `count` more checks are taken on; all of them or none.
    fn admit(&self, count: u32, max: u64, now: Micros) -> bool {
        let this_second = (now.0 / Micros::SECOND.0) << 32;
        let count = u64::from(count);
        let admit = |state: u64| {
            // A clock that went back opens no second anew.
            let state = state.max(this_second);
            let taken = (state & u64::from(u32::MAX)) + count;
            (taken <= max.min(u32::MAX.into())).then_some(state + count)
        };
        self.second.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit).is_ok()
    }
}

impl Gateway {
    /// Whether this process takes on one more check that somebody else asks for; see `max_checks`.
    pub fn admit_check(&self) -> bool {
        self.admit_checks(1)
    }

    /// The same for several that came together: all of them or none.
    pub fn admit_checks(&self, count: u32) -> bool {
        let max = match self.limiter.policy.current() {
            Some(current) => current.rules.policy().gateway.max_checks,
            None => GatewaySettings::default().max_checks,
        };
        let admitted = self.shed.admit(count, max, Micros::now());
        if !admitted {
            self.stats.shed.fetch_add(count.into(), Ordering::Relaxed);
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_maximum_is_taken_on_in_a_second() {
        let shed = Shed::default();
        let at = |seconds: f64| Micros((seconds * 1e6) as u64);
        assert!(shed.admit(2, 3, at(5.0)));
        assert!(!shed.admit(2, 3, at(5.5)), "all or none");
        assert!(shed.admit(1, 3, at(5.9)));
        assert!(!shed.admit(1, 3, at(5.9)));
        assert!(shed.admit(3, 3, at(6.0)), "the next second");
        assert!(!shed.admit(1, 3, at(5.0)), "the clock went back");
    }
}
