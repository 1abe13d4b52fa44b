//! Keys by number: each name is kept once, in one piece of memory, and found by its hash.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::traffic::keys::MAX_KEYS;

/// Numbers for names in the order in which they came. Beyond ten million all further ones are one.
#[derive(Debug, Default)]
pub struct Names {
    text: String,
    /// Where each name ends.
    ends: Vec<usize>,
    table: HashTable<u32>,
    hasher: RandomState,
    /// How often a name found no place any more.
    beyond: u64,
}

const OTHERS: &str = "(all others)";

impl Names {
    pub fn number(&mut self, name: &str) -> u32 {
        let hash = self.hasher.hash_one(name);
        let Names { text, ends, table, hasher, .. } = self;
        if let Some(found) = table.find(hash, |number| slice(text, ends, *number) == name) {
            return *found;
        }
        if ends.len() as u64 >= MAX_KEYS {
            self.beyond += 1;
            return MAX_KEYS as u32;
        }
        let number = ends.len() as u32;
        text.push_str(name);
        ends.push(text.len());
        let rehash = |number: &u32| hasher.hash_one(slice(text, ends, *number));
        table.insert_unique(hash, number, rehash);
        number
    }

    pub fn name(&self, number: u32) -> &str {
        if u64::from(number) >= MAX_KEYS { OTHERS } else { slice(&self.text, &self.ends, number) }
    }

    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// How many requests were counted together, for want of place.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }
}

fn slice<'a>(text: &'a str, ends: &[usize], number: u32) -> &'a str {
    let number = number as usize;
    let from = number.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    ends.get(number).and_then(|to| text.get(from..*to)).unwrap_or("")
}
