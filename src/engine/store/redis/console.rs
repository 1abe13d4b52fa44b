//! One server spoken to word by word: for what operators do to a Redis itself, never for checks.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, Value};

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

/// A command, word by word; words may hold any bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(Vec<Vec<u8>>);

impl Words {
    /// Of a command's name, perhaps with words that are always the same.
    pub fn of(command: &str) -> Words {
        Words(command.split(' ').map(|word| word.as_bytes().to_vec()).collect())
    }

    pub fn and(mut self, word: impl AsRef<[u8]>) -> Words {
        self.0.push(word.as_ref().to_vec());
        self
    }

    fn to_command(&self) -> Cmd {
        let mut command = Cmd::new();
        self.0.iter().for_each(|word| {
            command.arg(word.as_slice());
        });
        command
    }
}

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Nothing,
    Number(i64),
    Text(String),
    /// What is not text.
    Bytes(Vec<u8>),
    List(Vec<Said>),
}

/// What was said to one command of several.
pub type Answered = Result<Said, StoreError>;
/// What was said to commands that belong together, or why none of them ran.
pub(super) type Grouped = Result<Vec<Answered>, StoreError>;

impl Console {
    /// No command outlives `patience`, and neither does the connecting.
    pub async fn connect(address: &RedisAddress, patience: Micros) -> Result<Console, StoreError> {
        let unreachable = |why: String| StoreError::Unreachable { url: address.to_string(), why };
        let At::Server(server) = address.at() else {
            return Err(unreachable("one server is meant here, not several".into()));
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
        let command = Words(words.iter().map(|word| word.as_bytes().to_vec()).collect());
        match self.redis.clone().send_packed_command(&command.to_command()).await {
            Ok(value) => self.answered(value),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Several commands in one round trip, each with its own answer.
    pub async fn ask_all(&self, commands: &[Words]) -> Result<Vec<Answered>, StoreError> {
        let values = self.send(commands).await?;
        Ok(values.into_iter().map(|value| self.answered(value)).collect())
    }

    /// Several commands in one round trip with nothing in between: what they say, belongs to one
    /// moment.
    pub async fn ask_at_once(&self, commands: &[Words]) -> Result<Vec<Answered>, StoreError> {
        let group = std::slice::from_ref(&commands);
        let said = self.ask_groups(group).await?.pop();
        said.unwrap_or_else(|| Err(self.lost("it answers no as redis would")))
    }

    /// Several such groups in one round trip, each of one moment.
    pub async fn ask_groups(&self, groups: &[&[Words]]) -> Result<Vec<Grouped>, StoreError> {
        let mut framed = Vec::new();
        for commands in groups {
            framed.push(Words::of("MULTI"));
            framed.extend_from_slice(commands);
            framed.push(Words::of("EXEC"));
        }
        let mut values = self.send(&framed).await?.into_iter();
        let each = |commands: &&[Words]| {
            let queued: Vec<Value> = values.by_ref().take(commands.len() + 1).collect();
            match values.next() {
                Some(Value::Array(said)) => {
                    Ok(said.into_iter().map(|v| self.answered(v)).collect())
                }
                other => {
                    // The first refusal says why: that of EXEC only says that there was one.
                    let refused = queued.into_iter().chain(other).map(|v| self.answered(v));
                    let why = refused.filter_map(Result::err).next();
                    Err(why.unwrap_or_else(|| self.lost("it answers no as redis would")))
                }
            }
        };
        Ok(groups.iter().map(each).collect())
    }

    async fn send(&self, commands: &[Words]) -> Result<Vec<Value>, StoreError> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        commands.iter().for_each(|words| {
            pipeline.add_command(words.to_command());
        });
        let mut redis = self.redis.clone();
        let sent = redis.send_packed_commands(&pipeline, 0, commands.len()).await;
        sent.map_err(|error| self.failed(&error))
    }

    /// Where it is, without secrets.
    pub fn place(&self) -> &str {
        self.address.place()
    }

    fn answered(&self, value: Value) -> Answered {
        let Value::ServerError(error) = value else { return Ok(Said::from(value)) };
        let (code, url) = (error.code().to_string(), self.address.to_string());
        let details = error.details().unwrap_or("it gives no reason");
        let hint = if code == "NOPERM" { "; docs/keys.md lists what a user needs" } else { "" };
        Err(StoreError::Refused { url, why: format!("{code} {details}{hint}"), code })
    }

    fn failed(&self, error: &RedisError) -> StoreError {
        match error.is_timeout() {
            true => StoreError::Silent { url: self.address.to_string(), patience: self.patience },
            false => self.lost(&error.to_string()),
        }
    }

    fn lost(&self, why: &str) -> StoreError {
        StoreError::Cut { url: self.address.to_string(), why: why.into() }
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
            Said::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Said::Number(number) => number.to_string(),
            Said::Nothing | Said::List(_) => String::new(),
        }
    }

    /// None where nothing was said, or no string.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Said::Text(text) => Some(text.into_bytes()),
            Said::Bytes(bytes) => Some(bytes),
            Said::Nothing | Said::Number(_) | Said::List(_) => None,
        }
    }

    /// A number, also one that was written.
    pub fn number(&self) -> Option<i64> {
        match self {
            Said::Number(number) => Some(*number),
            Said::Text(text) => text.parse().ok(),
            _ => None,
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
        match value {
            Value::Nil => Said::Nothing,
            Value::Int(number) => Said::Number(number),
            Value::BulkString(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Said::Text(text),
                Err(error) => Said::Bytes(error.into_bytes()),
            },
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
