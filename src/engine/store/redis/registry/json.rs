//! Documents of the registry as the JSON that they are kept as.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::registry::RegistryError;

/// Nothing reads as the default.
pub(super) fn parse<T: Default + DeserializeOwned>(
    key: &str,
    text: &[u8],
) -> Result<T, RegistryError> {
    if text.is_empty() { Ok(T::default()) } else { parse_some(key, text) }
}

pub(super) fn parse_some<T: DeserializeOwned>(key: &str, text: &[u8]) -> Result<T, RegistryError> {
    serde_json::from_slice(text)
        .map_err(|error| RegistryError::Unreadable { key: key.into(), why: error.to_string() })
}

pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data becomes JSON")
}
