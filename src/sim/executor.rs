//! Runs asynchronous code in virtual time: one thread, tasks in the order they became ready, and a
//! clock that jumps to the next moment somebody waits for. The same tasks give the same history on
//! every machine.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::engine::clock::VirtualClock;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Tasks and their time. A handle: clones are the same executor.
#[derive(Clone)]
pub struct Executor {
    clock: Arc<VirtualClock>,
    tasks: Rc<RefCell<Tasks>>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct Tasks {
    places: Vec<Place>,
    free: Vec<usize>,
}

/// A place outlives its tasks, so that its waker is made once. A waker of an earlier task may then
/// wake a later one for nothing, which is harmless.
struct Place {
    task: Option<Task>,
    waker: Waker,
}

/// The places to look at next, in order.
#[derive(Default)]
struct Ready(Mutex<VecDeque<usize>>);

struct WakePlace {
    place: usize,
    ready: Arc<Ready>,
}

impl Wake for WakePlace {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.place);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.push(self.place);
    }
}

impl Ready {
    fn push(&self, place: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(place);
    }

    fn pop(&self) -> Option<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Executor {
    pub fn new(clock: Arc<VirtualClock>) -> Executor {
        Executor { clock, tasks: Rc::default(), ready: Arc::default() }
    }

    pub fn clock(&self) -> &Arc<VirtualClock> {
        &self.clock
    }

    /// Begins a task; it is first looked at after those that are ready now.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        let place = tasks.free.pop().unwrap_or_else(|| {
            let place = tasks.places.len();
            let waker = Waker::from(Arc::new(WakePlace { place, ready: self.ready.clone() }));
            tasks.places.push(Place { task: None, waker });
            place
        });
        tasks.places[place].task = Some(Box::pin(task));
        self.ready.push(place);
    }

    /// Runs until nobody is ready and nobody waits for a moment.
    pub fn run(&self) {
        loop {
            while let Some(place) = self.ready.pop() {
                self.look_at(place);
            }
            if !self.clock.advance() {
                return;
            }
        }
    }

    fn look_at(&self, place: usize) {
        let mut tasks = self.tasks.borrow_mut();
        let waker = tasks.places[place].waker.clone();
        // Taken out meanwhile: a task may spawn others.
        let Some(mut task) = tasks.places[place].task.take() else { return };
        drop(tasks);
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        let mut tasks = self.tasks.borrow_mut();
        match polled {
            Poll::Pending => tasks.places[place].task = Some(task),
            Poll::Ready(()) => tasks.free.push(place),
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.tasks.borrow();
        let running = tasks.places.len() - tasks.free.len();
        f.debug_struct("Executor").field("clock", &self.clock).field("tasks", &running).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::clock::Micros;

    #[test]
    fn time_jumps_to_whoever_waits_and_ties_keep_their_order() {
        let executor = Executor::new(VirtualClock::starting_at(Micros::DAY));
        let seen: Rc<RefCell<Vec<(u64, &str)>>> = Rc::default();
        for (name, wait) in [("late", 90_000_000), ("first", 5), ("second", 5), ("now", 0)] {
            let (seen, clock) = (seen.clone(), executor.clock().clone());
            executor.spawn(async move {
                clock.sleep_until(Micros::DAY + Micros(wait)).await;
                seen.borrow_mut().push(((clock.now() - Micros::DAY).0, name));
            });
        }
        executor.run();
        let wanted = [(0, "now"), (5, "first"), (5, "second"), (90_000_000, "late")];
        assert_eq!(*seen.borrow(), wanted);
    }

    #[test]
    fn a_task_may_spawn_others_and_places_are_used_again() {
        let executor = Executor::new(VirtualClock::starting_at(Micros::ZERO));
        let done = Rc::new(RefCell::new(0));
        let (inner, count) = (executor.clone(), done.clone());
        executor.spawn(async move {
            for n in 1..=1_000 {
                let (clock, count) = (inner.clock().clone(), count.clone());
                inner.clock().sleep_until(Micros(10 * n)).await;
                inner.spawn(async move {
                    clock.sleep_until(Micros(10 * n + 15)).await;
                    *count.borrow_mut() += 1;
                });
            }
        });
        executor.run();
        assert_eq!((*done.borrow(), executor.clock().now()), (1_000, Micros(10_015)));
        assert!(executor.tasks.borrow().places.len() < 6);
    }
}
