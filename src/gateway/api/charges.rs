//! Ids of charges that nobody can make up: each is signed with a secret that the gateways of one
//! store share. One id holds all charges of one request.

use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::engine::clock::Micros;
use crate::engine::registry::{Registry, RegistryError, Secret};
use crate::engine::store::Charge;

/// How long a secret is believed to be the one: a store that was emptied gets a new one.
const KNOWN_FOR: Micros = Micros::MINUTE;
const VERSION: &str = "v1";

#[derive(Debug)]
pub(super) struct Charges {
    registry: Arc<Registry>,
    known: Mutex<Option<(Secret, Micros)>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChargeError {
    #[error("that is not the id of a charge of this store")]
    Unknown,
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl Charges {
    pub(super) fn new(registry: Arc<Registry>) -> Charges {
        Charges { registry, known: Mutex::default() }
    }

    /// The id of what was charged; none when nothing was, or nothing can be signed.
    pub(super) async fn sign(&self, charges: &[Charge]) -> Option<String> {
        if charges.is_empty() {
            return None;
        }
        let secret = self.secret().await.ok()?;
        let ids: Vec<String> = charges.iter().map(Charge::to_id).collect();
        let ids = ids.join(".");
        let mac = URL_SAFE_NO_PAD.encode(signature(&secret, &ids).finalize().into_bytes());
        Some(format!("{VERSION}.{mac}.{ids}"))
    }

    pub(super) async fn verify(&self, id: &str) -> Result<Vec<Charge>, ChargeError> {
        let mut parts = id.splitn(3, '.');
        let (Some(VERSION), Some(mac), Some(ids)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(ChargeError::Unknown);
        };
        let mac = URL_SAFE_NO_PAD.decode(mac).map_err(|_| ChargeError::Unknown)?;
        let secret = self.secret().await?;
        signature(&secret, ids).verify_slice(&mac).map_err(|_| ChargeError::Unknown)?;
        let charges = ids.split('.').map(Charge::from_id).collect::<Result<Vec<_>, _>>();
        charges.map_err(|_| ChargeError::Unknown)
    }

    /// Asked again each minute; while the store is away the last one serves.
    async fn secret(&self) -> Result<Secret, RegistryError> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let now = Micros::now();
        if let Some((secret, at)) = &known
            && now.saturating_sub(*at) < KNOWN_FOR
        {
            return Ok(secret.clone());
        }
        match (self.registry.secret().await, known) {
            (Ok(secret), _) => {
                let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                *known = Some((secret.clone(), now));
                Ok(secret)
            }
            (Err(_), Some((old, _))) => Ok(old),
            (Err(error), None) => Err(error),
        }
    }
}

fn signature(secret: &Secret, ids: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).expect("any length does for a key");
    mac.update(VERSION.as_bytes());
    mac.update(ids.as_bytes());
    mac
}
