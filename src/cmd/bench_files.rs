//! The files of a run: opened before it starts, so that a wrong path is told in the first second.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

use super::out_file::OutFile;
use super::{Exit, Failure};
use crate::engine::clock::Micros;
use crate::load::answer::Outcome;
use crate::load::collect::{Collected, Second};
use crate::load::record::Timings;
use crate::load::report::Saved;
use crate::output::moment;

/// Steps of the printed distribution for each halving of what is left, as HdrHistogram's own.
const STEPS: u32 = 5;

type Out = BufWriter<OutFile>;

pub(super) struct Files {
    save: Option<(PathBuf, Out)>,
    hdr: Option<(PathBuf, Out)>,
    hdr_log: Option<(PathBuf, Out)>,
    /// Where the second ended that was written last.
    until_us: u64,
}

fn create(flag: &str, path: &Option<PathBuf>) -> Result<Option<(PathBuf, Out)>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let file = OutFile::open(path).map_err(|error| {
        let what = format!("cannot write {flag} {}: {error}", path.display());
        Failure::new(Exit::Failed, what)
    })?;
    Ok(Some((path.clone(), BufWriter::new(file))))
}

impl Files {
    pub(super) fn create(
        save: &Option<PathBuf>,
        hdr: &Option<PathBuf>,
        hdr_log: &Option<PathBuf>,
    ) -> Result<Files, Failure> {
        Ok(Files {
            save: create("--save", save)?,
            hdr: create("--hdr", hdr)?,
            hdr_log: create("--hdr-log", hdr_log)?,
            until_us: 0,
        })
    }

    /// The run starts now.
    pub(super) fn begin(&mut self, started: Micros) -> io::Result<()> {
        let Some((_, out)) = &mut self.hdr_log else { return Ok(()) };
        let seconds = started.0 as f64 / Micros::SECOND.0 as f64;
        writeln!(out, "#[Histogram log format version 1.3]")?;
        writeln!(out, "#[rlctl bench: response times in microseconds, by outcome]")?;
        writeln!(out, "#[StartTime: {seconds:.3} (seconds since epoch), {}]", moment(started))?;
        writeln!(
            out,
            "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\""
        )
    }

    /// A second is over.
    pub(super) fn second(&mut self, second: &Second, timings: &[Timings; 5]) -> io::Result<()> {
        let (from, until) = (self.until_us, second.until_us);
        self.until_us = until;
        let Some((_, out)) = &mut self.hdr_log else { return Ok(()) };
        let seconds = |us: u64| us as f64 / Micros::SECOND.0 as f64;
        for outcome in Outcome::ALL {
            let histogram = &timings[outcome as usize].response;
            if histogram.is_empty() {
                continue;
            }
            let mut bytes = Vec::new();
            let written = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
            written.map_err(|error| io::Error::other(error.to_string()))?;
            writeln!(
                out,
                "Tag={},{:.3},{:.3},{:.3},{}",
                outcome.name(),
                seconds(from),
                seconds(until.saturating_sub(from)),
                histogram.max() as f64 / 1_000.0,
                base64::engine::general_purpose::STANDARD.encode(&bytes)
            )?;
        }
        Ok(())
    }

    /// Everything is known.
    pub(super) fn end(&mut self, saved: &Saved, collected: &Collected) -> Result<(), Failure> {
        if let Some((_, out)) = &mut self.save {
            serde_json::to_writer(&mut *out, saved).map_err(io::Error::from)?;
            writeln!(out)?;
            out.flush()?;
        }
        if let Some((_, out)) = &mut self.hdr_log {
            out.flush()?;
        }
        let Some((path, out)) = &mut self.hdr else { return Ok(()) };
        // Each outcome by itself: quick refusals would flatter what was served.
        write_hgrm(out, &collected.outcomes[Outcome::Allowed as usize].response)?;
        for outcome in &Outcome::ALL[1..] {
            let histogram = &collected.outcomes[*outcome as usize].response;
            if !histogram.is_empty() {
                let mut out = BufWriter::new(File::create(beside(path, outcome.name()))?);
                write_hgrm(&mut out, histogram)?;
            }
        }
        Ok(())
    }
}

/// `out.limited.hgrm` beside `out.hgrm`.
fn beside(path: &Path, outcome: &str) -> PathBuf {
    let extension = path.extension().map_or("hgrm".into(), |e| e.to_string_lossy().into_owned());
    path.with_extension(format!("{outcome}.{extension}"))
}

/// The distribution in milliseconds, in the form that HdrHistogram's plotters read.
fn write_hgrm(out: &mut impl Write, histogram: &Histogram<u64>) -> io::Result<()> {
    let ms = |us: f64| us / 1_000.0;
    writeln!(
        out,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    let mut total = 0;
    for step in histogram.iter_quantiles(STEPS) {
        total += step.count_since_last_iteration();
        let (value, share) = (ms(step.value_iterated_to() as f64), step.quantile_iterated_to());
        write!(out, "{value:>12.3} {share:>14.12} {total:>10}")?;
        if share < 1.0 {
            write!(out, " {:>14.2}", 1.0 / (1.0 - share))?;
        }
        writeln!(out)?;
    }
    let (mean, deviation) = (ms(histogram.mean()), ms(histogram.stdev()));
    writeln!(out, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]")?;
    let (max, count) = (ms(histogram.max() as f64), histogram.len());
    writeln!(out, "#[Max     = {max:>12.3}, Total count    = {count:>12}]")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_written_as_plotters_read_it() {
        let mut histogram = crate::load::record::histogram();
        (1..=1_000u64).for_each(|us| histogram.record(us).expect("in range"));
        let mut out = Vec::new();
        write_hgrm(&mut out, &histogram).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = |n: usize| text.lines().nth(n).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(line(0)[0], "Value");
        assert_eq!(line(2), ["0.001", "0.000000000000", "1", "1.00"]);
        assert!(text.contains("0.500 0.500000000000        500"), "{text}");
        assert!(text.ends_with("Total count    =         1000]\n"), "{text}");
    }
}
