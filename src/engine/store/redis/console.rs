//! One server spoken to word by word: for what operators do to a Redis itself, never for checks.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Value};

use super::address::{At, RedisAddress};
use super::words::explain;
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;

#[derive(Clone)]
pub struct Console {
    redis: MultiplexedConnection,
    address: RedisAddress,
    patience: Micros,
}

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Nothing,
    Number(i64),
    Text(String),
    List(Vec<Said>),
}

impl Console {
    /// No command outlives `patience`, and neither does the connecting.
    pub async fn connect(address: &RedisAddress, patience: Micros) -> Result<Console, StoreError> {
        let unreachable = |why: String| StoreError::Unreachable { url: address.to_string(), why };
        let At::Server(server) = address.at() else {
            return Err(unreachable("one server is meant here, not the sentinels of one".into()));
        };
        let client =
            Client::open(server.as_ref().clone()).map_err(|e| unreachable(e.to_string()))?;
        let within: Duration = patience.into();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(within))
            .set_response_timeout(Some(within));
        let redis = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| unreachable(explain(&error)))?;
        Ok(Console { redis, address: address.clone(), patience })
    }

    pub async fn ask(&self, words: &[&str]) -> Result<Said, StoreError> {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        let url = || self.address.to_string();
        match self.redis.clone().send_packed_command(&command).await {
            Ok(Value::ServerError(error)) => {
                let code = error.code().to_string();
                let why = error.details().unwrap_or("it gives no reason");
                Err(StoreError::Refused { url: url(), why: format!("{code} {why}"), code })
            }
            Ok(value) => Ok(Said::from(value)),
            Err(error) if error.is_timeout() => {
                Err(StoreError::Timeout { url: url(), deadline: self.patience })
            }
            Err(error) => Err(StoreError::Lost { url: url(), why: error.to_string() }),
        }
    }

    /// The same where text is expected; anything else is none.
    pub async fn text(&self, words: &[&str]) -> Result<String, StoreError> {
        Ok(self.ask(words).await?.into_text())
    }
}

impl Said {
    pub fn into_text(self) -> String {
        match self {
            Said::Text(text) => text,
            Said::Number(number) => number.to_string(),
            Said::Nothing | Said::List(_) => String::new(),
        }
    }

    pub fn into_list(self) -> Vec<Said> {
        match self {
            Said::List(items) => items,
            _ => Vec::new(),
        }
    }
}

impl From<Value> for Said {
    fn from(value: Value) -> Said {
        let text = |bytes: &[u8]| Said::Text(String::from_utf8_lossy(bytes).into_owned());
        match value {
            Value::Nil => Said::Nothing,
            Value::Int(number) => Said::Number(number),
            Value::BulkString(bytes) => text(&bytes),
            Value::SimpleString(words) | Value::VerbatimString { text: words, .. } => {
                Said::Text(words)
            }
            Value::Okay => Said::Text("OK".into()),
            Value::Boolean(is) => Said::Number(i64::from(is)),
            Value::Array(items) | Value::Set(items) => {
                Said::List(items.into_iter().map(Said::from).collect())
            }
            Value::Map(pairs) => {
                Said::List(pairs.into_iter().flat_map(|(k, v)| [k.into(), v.into()]).collect())
            }
            other => Said::Text(format!("{other:?}")),
        }
    }
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Console({})", self.address)
    }
}
