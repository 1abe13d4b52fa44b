//! One gateway, listened to for as long as it takes: a stream that breaks is opened again.

use std::sync::Arc;

use tokio::sync::mpsc::Sender;
use tokio::time::{Duration, sleep, timeout};

use crate::engine::clock::Micros;
use crate::ops::admin::Admin;
use crate::tui::wire::Told;

const PATH: &str = "/api/v1/stats/stream?rows=100";
/// One comes each second; after this long it is as good as gone.
const SILENT_AFTER: Duration = Duration::from_secs(4);
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What the gateway of this number said, or why it did not.
pub(super) type News = (usize, Result<Box<Told>, String>);

pub(super) async fn listen(number: usize, admin: Arc<Admin>, to: Sender<News>) {
    loop {
        let why = listen_once(number, &admin, &to).await;
        if to.send((number, Err(why))).await.is_err() {
            return;
        }
        sleep(AGAIN_AFTER).await;
    }
}

/// Until it ends, and why.
async fn listen_once(number: usize, admin: &Admin, to: &Sender<News>) -> String {
    let mut events = match admin.events(PATH).await {
        Ok(events) => events,
        Err(error) => return error.to_string(),
    };
    loop {
        let text = match timeout(SILENT_AFTER, events.next()).await {
            Ok(Ok(Some(text))) => text,
            Ok(Ok(None)) => return "it has ended the stream".into(),
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "it says nothing any more".into(),
        };
        match Told::read(&text, &admin.at(), Micros::now().0) {
            Ok(told) => {
                if to.send((number, Ok(Box::new(told)))).await.is_err() {
                    return String::new();
                }
            }
            Err(error) => return format!("what it says is no stats of a gateway: {error}"),
        }
    }
}
