//! Which keys are asked about most, of any number of them, in bounded memory: a space-saving sketch
//! over short windows. It keeps a fixed number of places; a newcomer takes the place of the least,
//! and inherits its weight, so that no key above `all / places` is missed. What is told of a key is
//! only what was counted under its own name, so a rate is never too high.

use super::Who;
use super::spending::Spending;
use crate::engine::clock::Micros;

/// Rates are those of the last whole window: long enough for a hundred requests of the slowest key
/// that matters, short enough to tell of it within a second.
pub(super) const WINDOW: Micros = Micros(200 * Micros::MILLISECOND.0);
/// Of each shard: looked through for each request, so few.
const PLACES: usize = 16;
/// Of these, so many may be hot: room is left to notice newcomers.
const MAX_HOT: usize = 8;
/// A key is worth being named, and its rate being told, from so many requests in two windows.
const WORTH_A_NAME: u64 = 8;
/// It is hot no longer after so many windows below half of its threshold: a second.
const LETS_GO_AFTER: u8 = 5;

#[derive(Debug, Default)]
pub(super) struct Sketch {
    pub(super) places: Vec<Place>,
    /// The number of the window that is counted in.
    window: u64,
}

/// One key.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) hash: u64,
    /// Whose it is: known once it matters.
    pub(super) who: Option<Box<Who>>,
    asked: [u64; 2],
    cost: [u64; 2],
    /// Weight of whoever had this place before.
    inherited: u64,
    /// Requests a second at other gateways, as last heard.
    pub(super) elsewhere: u64,
    pub(super) hot: Option<Box<Hot>>,
}

/// A key that is decided about here.
#[derive(Debug)]
pub(super) struct Hot {
    pub(super) since: Micros,
    pub(super) spending: Spending,
    /// Windows in a row in which it was not hot.
    quiet: u8,
}

/// This window, and the one before.
const NOW: usize = 0;
const BEFORE: usize = 1;

impl Sketch {
    /// Counts a request, and finds its place.
    pub(super) fn count(&mut self, hash: u64, cost: u64) -> &mut Place {
        let found = self.places.iter().position(|place| place.hash == hash);
        let n = found.unwrap_or_else(|| self.make_room(hash));
        let place = &mut self.places[n];
        place.asked[NOW] += 1;
        place.cost[NOW] += cost;
        place
    }

    pub(super) fn find(&mut self, hash: u64) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.hash == hash)
    }

    fn make_room(&mut self, hash: u64) -> usize {
        let mut place = Place::new(hash);
        if self.places.len() < PLACES {
            self.places.push(place);
            return self.places.len() - 1;
        }
        let cold = self.places.iter().enumerate().filter(|(_, place)| place.hot.is_none());
        // At most MAX_HOT of them are hot, so there is one.
        let n = cold.min_by_key(|(_, place)| place.weight()).map_or(0, |(n, _)| n);
        place.inherited = self.places[n].weight();
        self.places[n] = place;
        n
    }

    /// Goes on to the window of `now`; true when it is another one, and then keys may have become
    /// hot or ceased to be.
    pub(super) fn roll(&mut self, now: Micros) -> bool {
        let window = now.0 / WINDOW.0;
        if window == self.window {
            return false;
        }
        let is_next = window == self.window.wrapping_add(1);
        self.window = window;
        for place in &mut self.places {
            let last = |counts: [u64; 2]| if is_next { [0, counts[NOW]] } else { [0, 0] };
            (place.asked, place.cost) = (last(place.asked), last(place.cost));
            place.inherited /= 2;
        }
        self.places.retain(|place| place.weight() > 0 || place.hot.is_some());
        true
    }

    /// Which keys are hot now; those that ceased to be are handed out.
    pub(super) fn judge(&mut self, now: Micros, a_window_passed: bool) -> Vec<Hot> {
        let mut cooled = Vec::new();
        let mut hot = self.places.iter().filter(|place| place.hot.is_some()).count();
        for place in &mut self.places {
            let Some(threshold) = place.who.as_ref().map(|who| who.settings.threshold) else {
                continue;
            };
            let rate = place.rate() + place.elsewhere;
            match &mut place.hot {
                None if rate >= threshold && hot < MAX_HOT => {
                    hot += 1;
                    let spending = Spending::default();
                    place.hot = Some(Box::new(Hot { since: now, spending, quiet: 0 }));
                }
                None => {}
                Some(is) if rate >= threshold / 2 => is.quiet = 0,
                Some(is) => is.quiet += u8::from(a_window_passed),
            }
            if place.hot.as_ref().is_some_and(|is| is.quiet >= LETS_GO_AFTER) {
                cooled.extend(place.hot.take().map(|hot| *hot));
                hot -= 1;
            }
        }
        cooled
    }
}

impl Place {
    fn new(hash: u64) -> Place {
        let (asked, cost) = ([0; 2], [0; 2]);
        Place { hash, who: None, asked, cost, inherited: 0, elsewhere: 0, hot: None }
    }

    fn weight(&self) -> u64 {
        self.asked[NOW] + self.asked[BEFORE] + self.inherited
    }

    pub(super) fn is_worth_a_name(&self) -> bool {
        self.asked[NOW] + self.asked[BEFORE] >= WORTH_A_NAME
    }

    /// Requests a second here.
    pub(super) fn rate(&self) -> u64 {
        self.asked[BEFORE] * Micros::SECOND.0 / WINDOW.0
    }

    /// Cost a second that is asked for here; what has come in this window already tells of a rise.
    pub(super) fn demand(&self) -> u64 {
        self.cost[BEFORE].max(self.cost[NOW]).saturating_mul(Micros::SECOND.0 / WINDOW.0)
    }
}
