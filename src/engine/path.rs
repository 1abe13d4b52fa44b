//! The one spelling of a path, so that nobody gets round a rule by writing it another way. Pure.

use std::borrow::Cow;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("a path begins with /")]
    NotAbsolute,
    #[error(
        "an encoded slash (%2F) or zero byte in a path means something else to everybody; refused"
    )]
    EncodedSlash,
    #[error("the path is not UTF-8 text once decoded")]
    NotText,
}

/// The one spelling of a path that rules are matched against: percent-decoded, without dot
/// segments, doubled slashes, a slash at the end, or a query.
pub fn normal_path(path: &str) -> Result<Cow<'_, str>, PathError> {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if !path.starts_with('/') {
        return Err(PathError::NotAbsolute);
    }
    let plain = !path.contains('%') && !path.contains("//") && !path.contains("/.");
    if plain {
        let trimmed = path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(path);
        return Ok(Cow::Borrowed(trimmed));
    }
    let mut segments: Vec<Cow<'_, str>> = Vec::new();
    for raw in path.split('/').skip(1) {
        let segment = percent_encoding::percent_decode_str(raw)
            .decode_utf8()
            .map_err(|_| PathError::NotText)?;
        if segment.contains(['/', '\0']) {
            return Err(PathError::EncodedSlash);
        }
        match segment.as_ref() {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    Ok(Cow::Owned(format!("/{}", segments.join("/"))))
}
