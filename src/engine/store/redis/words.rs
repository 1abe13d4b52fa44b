//! What a Redis says in its own way, with what it means and what to do about it.

use redis::RedisError;

const PASSWORD_HINT: &str =
    "; give the password in the URL, RLCTL_REDIS_PASSWORD_FILE or REDISCLI_AUTH";

/// What the usual refusals mean and what to do; the server's own words for the others, without the
/// numbers of the script it was running.
pub(super) fn in_plain_words(code: &str, error: &RedisError) -> String {
    let meaning = match code {
        "OOM" => "it is out of memory (maxmemory); free some, or raise the bound",
        "READONLY" => "it is a replica and takes no writes; give the address of the master",
        "NOREPLICAS" => "it has too few replicas to take writes (min-replicas-to-write)",
        "MISCONF" => "it cannot save to disk and takes no writes until it can",
        "MOVED" | "ASK" => {
            "it is one node of a cluster, and another has this key; write redis-cluster://host:port"
        }
        "CLUSTERDOWN" => {
            "its cluster is down, or nobody in it has this key's slot; redis-cli --cluster check says which"
        }
        "TRYAGAIN" => "the slot of this key is being moved; try again in a moment",
        "MASTERDOWN" => "it has lost its master and answers nothing that may be out of date",
        "LOADING" => "it is still loading its data; try again in a moment",
        "WRONGTYPE" => {
            "a key under our prefix holds something else; does another program use it? see --prefix"
        }
        _ => "",
    };
    if !meaning.is_empty() {
        return format!("{code}: {meaning}");
    }
    let words = error.to_string();
    let words = words.split(" script: ").next().unwrap_or_default();
    let hint = if code == "NOPERM" { "; docs/keys.md lists what the user needs" } else { "" };
    format!("{words}{hint}")
}

/// The crate's words, with what to do about the usual ones.
pub(super) fn explain(error: &RedisError) -> String {
    let text = error.to_string();
    // With a database number the crate stumbles over SELECT first, and keeps only the text.
    let wants_password = text.contains("Authentication required");
    let hint = match (error.kind(), error.code()) {
        _ if wants_password => PASSWORD_HINT,
        (redis::ErrorKind::Parse, _) => "; what answers there is not redis",
        (_, Some("NOAUTH" | "WRONGPASS")) | (redis::ErrorKind::AuthenticationFailed, _) => {
            PASSWORD_HINT
        }
        _ if error.is_connection_refusal() => "; is redis-server running there?",
        _ => "",
    };
    text + hint
}
