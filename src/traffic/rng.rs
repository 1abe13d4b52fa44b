//! Random numbers that are the same on every machine and in every version: xoshiro256++, whose
//! output is fixed by its published reference, and logarithms of our own, because those of the
//! platforms differ in their last digit.

/// xoshiro256++ by Blackman and Vigna.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of a seed that belongs to `purpose`: what arrives and for whom do not disturb
    /// each other, so that other keys leave the times as they are.
    pub fn new(seed: u64, purpose: u64) -> Rng {
        let mut mixed = seed ^ purpose.wrapping_mul(0xd134_2543_de82_ef95);
        let mut next = || {
            // splitmix64: fills the state from any seed, also from 0.
            mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = mixed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Rng { state: [next(), next(), next(), next()] }
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// From 0 to `n − 1`; the bias is below `n / 2^64`.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        self.place(n).0
    }

    /// A place among `n`, and how far into it, as a share of 2^64.
    #[inline]
    pub(super) fn place(&mut self, n: u64) -> (u64, u64) {
        let product = u128::from(self.next_u64()) * u128::from(n);
        ((product >> 64) as u64, product as u64)
    }

    /// Evenly spread over `[0, 1)`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A waiting time with the mean 1.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -ln_up_to_one(1.0 - self.unit())
    }
}

const COLUMNS: usize = 128;

/// For each of the parts of `[1, 2)` the inverse of its middle, and that middle's logarithm.
static MIDDLES: [(f64, f64); COLUMNS] = middles();

const fn middles() -> [(f64, f64); COLUMNS] {
    let mut table = [(0.0, 0.0); COLUMNS];
    let mut column = 0;
    while column < COLUMNS {
        let middle = 1.0 + (column as f64 + 0.5) / COLUMNS as f64;
        table[column] = (1.0 / middle, ln_of_one_to_two(middle));
        column += 1;
    }
    table
}

/// `2·artanh((x − 1)/(x + 1))` as a series; at most a third is raised to each power.
const fn ln_of_one_to_two(x: f64) -> f64 {
    let z = (x - 1.0) / (x + 1.0);
    let (mut power, mut sum, mut n) = (z, 0.0, 1);
    while n < 60 {
        sum += power / n as f64;
        power *= z * z;
        n += 2;
    }
    2.0 * sum
}

/// The natural logarithm of `0 < x ≤ 1`, to about 15 digits, by additions and multiplications
/// alone: those are the same everywhere. Several times as fast as one of a library.
#[inline]
fn ln_up_to_one(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let fraction = bits & ((1 << 52) - 1);
    let (inverse, ln_of_middle) = MIDDLES[(fraction >> 45) as usize];
    let r = f64::from_bits(fraction | 1023 << 52) * inverse - 1.0;
    let series = r * (1.0 - r * (0.5 - r * (1.0 / 3.0 - r * (0.25 - r * 0.2))));
    (exponent as f64 * std::f64::consts::LN_2 + ln_of_middle + series).min(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_generator() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let first: Vec<u64> = (0..6).map(|_| rng.next_u64()).collect();
        assert_eq!(
            first,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386,
                9_228_616_714_210_784_205,
                9_973_669_472_204_895_162
            ]
        );
    }

    #[test]
    fn the_logarithm_is_one() {
        let mut rng = Rng::new(5, 0);
        for x in (0..100_000).map(|_| 1.0 - rng.unit()).chain([1.0, 0.5, 1e-15, 1.0 - 1e-16]) {
            let (ours, theirs) = (ln_up_to_one(x), x.ln());
            assert!((ours - theirs).abs() <= 1e-14 * theirs.abs().max(0.1), "{x}: {ours} {theirs}");
        }
    }

    /// These numbers are a promise: whoever noted a seed gets the same traffic again.
    #[test]
    fn a_seed_gives_the_same_numbers_for_ever() {
        let mut rng = Rng::new(42, 1);
        assert_eq!([rng.next_u64(), rng.next_u64()], SEED_42_PURPOSE_1);
        let bits = rng.exponential().to_bits();
        assert_eq!(bits, NEXT_EXPONENTIAL, "{bits:#x}");
        assert_ne!(Rng::new(42, 2).next_u64(), SEED_42_PURPOSE_1[0]);
        assert_ne!(Rng::new(43, 1).next_u64(), SEED_42_PURPOSE_1[0]);
    }

    const SEED_42_PURPOSE_1: [u64; 2] = [13_134_520_056_203_151_151, 17_516_076_279_702_789_324];
    const NEXT_EXPONENTIAL: u64 = 0x3ff7_571d_5de2_6df4;

    #[test]
    fn numbers_are_spread_as_they_should() {
        let mut rng = Rng::new(7, 0);
        let n = 100_000;
        let mean = (0..n).map(|_| rng.exponential()).sum::<f64>() / f64::from(n);
        assert!((mean - 1.0).abs() < 0.015, "{mean}");
        let mut seen = [0u32; 10];
        (0..n).for_each(|_| seen[rng.below(10) as usize] += 1);
        assert!(seen.iter().all(|count| count.abs_diff(10_000) < 500), "{seen:?}");
    }
}
