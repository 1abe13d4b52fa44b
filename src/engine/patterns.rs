//! Many patterns asked at once: which of them mean an identity. Pure.
//!
//! A list of ten thousand networks is asked as fast as one of ten: by the address cut to each
//! length of prefix that occurs, of which there are few. Only families with a `*` are tried one
//! after the other.

use std::net::IpAddr;

use foldhash::fast::RandomState;
use ipnet::IpNet;
use smallvec::SmallVec;

use super::identity::{Identity, Pattern};

/// Only what operators write is put in, so that nobody outside can choose keys that collide.
type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// Patterns, and what each stands for.
#[derive(Debug)]
pub struct Patterns<V> {
    exact: HashMap<Identity, Vec<V>>,
    networks: HashMap<IpNet, Vec<V>>,
    /// The lengths of prefix that occur, of IPv4 and of IPv6 networks.
    lengths: [Vec<u8>; 2],
    families: Vec<(Pattern, V)>,
}

impl<V> Default for Patterns<V> {
    fn default() -> Patterns<V> {
        Patterns {
            exact: HashMap::default(),
            networks: HashMap::default(),
            lengths: Default::default(),
            families: Vec::new(),
        }
    }
}

impl<V: Copy + Ord> Patterns<V> {
    pub fn add(&mut self, pattern: &Pattern, value: V) {
        match pattern {
            Pattern::Exact(identity) => {
                self.exact.entry(identity.clone()).or_default().push(value);
            }
            Pattern::Network(network) => {
                let lengths = &mut self.lengths[usize::from(network.addr().is_ipv6())];
                if !lengths.contains(&network.prefix_len()) {
                    lengths.push(network.prefix_len());
                }
                self.networks.entry(network.trunc()).or_default().push(value);
            }
            family @ Pattern::Glob(_) => self.families.push((family.clone(), value)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.networks.is_empty() && self.families.is_empty()
    }

    /// What the patterns that mean `identity` stand for: in order, each once.
    pub fn of(&self, identity: &Identity) -> SmallVec<[V; 2]> {
        let mut found = SmallVec::new();
        if self.is_empty() {
            return found;
        }
        found.extend(self.exact.get(identity).into_iter().flatten().copied());
        if !self.networks.is_empty()
            && let Some(address) = address_of(identity)
        {
            for length in &self.lengths[usize::from(address.is_ipv6())] {
                let network = IpNet::new(address, *length).map(|network| network.trunc());
                let here = network.ok().and_then(|network| self.networks.get(&network));
                found.extend(here.into_iter().flatten().copied());
            }
        }
        let families = self.families.iter().filter(|(family, _)| family.matches(identity));
        found.extend(families.map(|(_, value)| *value));
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn address_of(identity: &Identity) -> Option<IpAddr> {
    identity.as_str().strip_prefix("ip:")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patterns_that_match_are_found_in_order_and_each_value_once() {
        let texts = [
            "ip:10.0.0.0/8",
            "ip:10.1.0.0/16",
            "ip:10.1.2.3",
            "ip:10.*",
            "ip:0.0.0.0/0",
            "ip:2001:db8::/32",
            "ip:::/0",
            "user:1",
            "user:*",
            "*",
            "ip:10.1.0.0/16",
        ];
        let patterns: Vec<Pattern> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let mut index = Patterns::default();
        for (number, pattern) in patterns.iter().enumerate() {
            index.add(pattern, number);
            index.add(pattern, number);
        }
        for text in [
            "ip:10.1.2.3",
            "ip:10.1.2.4",
            "ip:10.9.0.1",
            "ip:192.0.2.1",
            "ip:2001:db8:7::",
            "ip:2001:db9::",
            "user:1",
            "user:2",
            "alice",
        ] {
            let identity: Identity = text.parse().unwrap();
            let matching = (0..patterns.len()).filter(|n| patterns[*n].matches(&identity));
            assert_eq!(index.of(&identity).to_vec(), matching.collect::<Vec<_>>(), "{text}");
        }
        assert!(Patterns::<usize>::default().of(&"user:1".parse().unwrap()).is_empty());
    }
}
