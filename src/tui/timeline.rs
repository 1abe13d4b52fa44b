//! What was, moment by moment: new ones arrive at the end while somebody looks at an old one.

use std::sync::Arc;

use super::data::{Point, Snapshot};

/// Moments that are kept of a live picture: a quarter of an hour at one a second, some 20 MB.
pub const KEPT: usize = 900;
/// Of graphs, also what gateways remember from before.
const KEPT_POINTS: usize = KEPT + 300;

#[derive(Debug, Default)]
pub struct Timeline {
    moments: Vec<Arc<Snapshot>>,
    points: Vec<Point>,
    /// The moment that is looked at; none is the latest.
    at: Option<usize>,
    /// All of a recording is kept, and it is played.
    recording: bool,
    playing: bool,
}

impl Timeline {
    /// A recording, from its beginning.
    pub fn recorded(moments: Vec<Snapshot>, before: Vec<Point>) -> Timeline {
        let mut points = before;
        points.extend(moments.iter().map(Point::of));
        let at = (!moments.is_empty()).then_some(0);
        let moments = moments.into_iter().map(Arc::new).collect();
        Timeline { moments, points, at, recording: true, playing: true }
    }

    pub fn push(&mut self, snapshot: Snapshot) {
        // A clock that is set back makes no graph run backwards.
        if self.points.last().is_some_and(|last| last.at_us > snapshot.at_us) {
            self.points.retain(|point| point.at_us < snapshot.at_us);
        }
        self.points.push(Point::of(&snapshot));
        self.moments.push(Arc::new(snapshot));
        if !self.recording && self.moments.len() > KEPT {
            let over = self.moments.len() - KEPT;
            self.moments.drain(..over);
            self.at = self.at.map(|at| at.saturating_sub(over));
        }
        if !self.recording && self.points.len() > KEPT_POINTS {
            let over = self.points.len() - KEPT_POINTS;
            self.points.drain(..over);
        }
    }

    /// What was before the first moment.
    pub fn put_before(&mut self, past: Vec<Point>) {
        let first = self.points.first().map_or(u64::MAX, |point| point.at_us);
        let mut points: Vec<Point> = past.into_iter().filter(|point| point.at_us < first).collect();
        points.append(&mut self.points);
        self.points = points;
    }

    /// What is looked at.
    pub fn shown(&self) -> Option<&Arc<Snapshot>> {
        self.moments.get(self.at.unwrap_or(self.moments.len().wrapping_sub(1)))
    }

    pub fn latest(&self) -> Option<&Arc<Snapshot>> {
        self.moments.last()
    }

    pub fn moments(&self) -> &[Arc<Snapshot>] {
        &self.moments
    }

    /// Up to what is looked at.
    pub fn upto(&self) -> &[Arc<Snapshot>] {
        let end = self.at.map_or(self.moments.len(), |at| at + 1);
        &self.moments[..end.min(self.moments.len())]
    }

    /// Of graphs, up to what is looked at.
    pub fn points(&self) -> &[Point] {
        let Some(shown) = self.shown() else { return &self.points };
        let end = self.points.partition_point(|point| point.at_us <= shown.at_us);
        &self.points[..end]
    }

    pub fn is_live(&self) -> bool {
        self.at.is_none() && !self.recording
    }

    pub fn is_recording(&self) -> bool {
        self.recording
    }

    pub fn is_playing(&self) -> bool {
        self.playing
    }

    /// How far back the moment is that is looked at.
    pub fn behind_us(&self) -> u64 {
        match (self.shown(), self.latest()) {
            (Some(shown), Some(latest)) => latest.at_us.saturating_sub(shown.at_us),
            _ => 0,
        }
    }

    pub fn pause_or_go_on(&mut self) {
        if self.recording {
            self.playing = !self.playing;
        } else if self.at.is_some() {
            self.at = None;
        } else if !self.moments.is_empty() {
            self.at = Some(self.moments.len() - 1);
        }
    }

    /// So many moments on, or back; beyond the end is now.
    pub fn step(&mut self, by: i64) {
        if self.moments.is_empty() {
            return;
        }
        let last = self.moments.len() - 1;
        let at = self.at.unwrap_or(last);
        let by_usize = usize::try_from(by.unsigned_abs()).unwrap_or(usize::MAX);
        let to = if by < 0 { at.saturating_sub(by_usize) } else { at.saturating_add(by_usize) };
        self.at = Some(to.min(last));
        if self.recording {
            self.playing &= to < last;
        } else if to > last || (by > 0 && self.at == Some(last)) {
            self.at = None;
        }
    }

    /// A second has passed: a recording goes on.
    pub fn play(&mut self) {
        if self.recording && self.playing {
            self.step(1);
        }
    }

    pub fn to_end(&mut self) {
        self.at = self.recording.then(|| self.moments.len().saturating_sub(1));
        self.playing = false;
    }

    /// To the first moment at or after a time of day, `14:02:11`; false if there is none.
    pub fn seek(&mut self, time: &str) -> bool {
        let found = self.moments.iter().position(|m| *super::words::time(m.at_us) >= *time);
        if found.is_some() {
            self.at = found;
        }
        found.is_some()
    }

    /// What an identity asked and was refused in each of the last moments, oldest first.
    pub fn of_identity(&self, identity: &str, most: usize) -> Vec<(f64, f64)> {
        let upto = self.upto();
        let of = |list: &[super::data::Who]| {
            list.iter().find(|who| who.identity == identity).map_or(0.0, |who| who.per_second)
        };
        upto[upto.len().saturating_sub(most)..]
            .iter()
            .map(|moment| {
                let rejected = of(&moment.rejected);
                (of(&moment.seen).max(rejected), rejected)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Snapshot {
        Snapshot { at_us: seconds * 1_000_000, ..Snapshot::default() }
    }

    fn shown(timeline: &Timeline) -> u64 {
        timeline.shown().unwrap().at_us / 1_000_000
    }

    #[test]
    fn who_looks_back_is_not_pulled_along() {
        let mut timeline = Timeline::default();
        assert!(timeline.shown().is_none());
        timeline.step(-1);
        (1..=10).for_each(|n| timeline.push(at(n)));
        timeline.pause_or_go_on();
        (11..=20).for_each(|n| timeline.push(at(n)));
        assert_eq!((shown(&timeline), timeline.behind_us()), (10, 10_000_000));
        timeline.step(-3);
        assert_eq!(shown(&timeline), 7);
        assert_eq!(timeline.points().len(), 7);
        // More than is kept: it stays at the oldest there is.
        (21..=2000).for_each(|n| timeline.push(at(n)));
        assert_eq!(shown(&timeline), 2000 - KEPT as u64 + 1);
        timeline.step(i64::MAX);
        assert!(timeline.is_live());
    }

    #[test]
    fn a_recording_plays_to_its_end_and_can_be_sought() {
        let day = 1_796_083_200;
        let mut timeline = Timeline::recorded((0..5).map(|n| at(day + n)).collect(), Vec::new());
        timeline.play();
        assert_eq!(shown(&timeline), day + 1);
        assert!(timeline.seek("00:00:03"));
        timeline.play();
        timeline.play();
        assert_eq!((shown(&timeline), timeline.is_playing()), (day + 4, false));
        assert!(!timeline.seek("00:00:09"));
        let mut empty = Timeline::recorded(Vec::new(), Vec::new());
        empty.play();
        empty.step(-1);
        assert!(empty.shown().is_none());
    }
}
