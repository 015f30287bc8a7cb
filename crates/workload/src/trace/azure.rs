//! Azure LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`, where the timestamp is
//! `2023-11-16 18:15:46.6805900`, in the 2024 traces with an offset from UTC behind it.

use dunlin_units::Time;

use super::csv::Csv;
use super::error::{Column, Problem};
use super::field;
use super::{Format, Row};
use crate::request::Request;

pub(super) const COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

#[derive(Debug)]
pub(super) struct Azure {
    csv: Csv<3>,
    /// The first row's nanoseconds since 1970.
    first: Option<u64>,
}

impl Azure {
    pub(super) fn new(header: &str) -> Result<Self, (Column, Problem)> {
        Ok(Self { csv: Csv::new(header, COLUMNS, 3)?, first: None })
    }
}

impl Format for Azure {
    fn row(&mut self, line: &str) -> Result<Row, (Column, Problem)> {
        let [time, prompt, output] = self.csv.fields(line)?;
        let ns = date_time(time.as_bytes()).ok_or((self.csv.name(0), Problem::NotATime))?;
        let prompt = field::tokens(prompt).map_err(|p| (self.csv.name(1), p))?;
        let output = field::tokens(output).map_err(|p| (self.csv.name(2), p))?;
        let first = *self.first.get_or_insert(ns);
        let arrival = ns.checked_sub(first).ok_or((self.csv.name(0), Problem::BeforeFirst))?;
        Ok(Row::Request(Request::new(Time(arrival), prompt, output)))
    }
}

/// The number that these bytes spell.
#[inline]
fn digits(bytes: &[u8]) -> Option<u64> {
    bytes.iter().try_fold(0u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then(|| value * 10 + u64::from(digit))
    })
}

/// Nanoseconds since 1970 of `YYYY-MM-DD hh:mm:ss[.f][offset]`: up to 9 digits of a second, `T` for
/// the space, and `Z` or `+hh:mm` behind.
#[inline]
fn date_time(text: &[u8]) -> Option<u64> {
    const NS: u64 = 1_000_000_000;
    let (head, mut rest) = text.split_first_chunk::<19>()?;
    let separators = [head[4], head[7], head[10], head[13], head[16]];
    if !matches!(separators, [b'-', b'-', b' ' | b'T', b':', b':']) {
        return None;
    }
    let (year, month, day) = (digits(&head[..4])?, digits(&head[5..7])?, digits(&head[8..10])?);
    let (hour, minute, second) =
        (digits(&head[11..13])?, digits(&head[14..16])?, digits(&head[17..])?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut fraction = 0;
    if let [b'.', after @ ..] = rest {
        let length = after.iter().take_while(|b| b.is_ascii_digit()).count();
        if !(1..=9).contains(&length) {
            return None;
        }
        fraction = digits(&after[..length])? * 10u64.pow(9 - length as u32);
        rest = &after[length..];
    }
    let offset = offset_seconds(rest)?;
    let seconds = days(year, month, day)? * 86_400 + hour * 3600 + minute * 60 + second;
    seconds.checked_add_signed(-offset)?.checked_mul(NS)?.checked_add(fraction)
}

/// Seconds that a clock with this offset is ahead of UTC.
fn offset_seconds(text: &[u8]) -> Option<i64> {
    match text {
        b"" | b"Z" => Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (digits(&[*h1, *h2])?, digits(&[*m1, *m2])?);
            let seconds = (hours <= 23 && minutes <= 59).then_some(hours * 3600 + minutes * 60)?;
            Some(if *sign == b'+' { seconds as i64 } else { -(seconds as i64) })
        }
        _ => None,
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, from 1970 on.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    const BEFORE: [u64; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    if year < 1970 || !(1..=12).contains(&month) {
        return None;
    }
    let extra = u64::from(leap(year));
    let at = month as usize;
    let length = BEFORE[at] - BEFORE[at - 1] + if month == 2 { extra } else { 0 };
    if !(1..=length).contains(&day) {
        return None;
    }
    // Leap years before this one, less those before 1970.
    let leaps = |y: u64| (y - 1) / 4 - (y - 1) / 100 + (y - 1) / 400;
    let before = (year - 1970) * 365 + leaps(year) - leaps(1970);
    Some(before + BEFORE[at - 1] + if month > 2 { extra } else { 0 } + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times() {
        // date -u -d '2023-11-16 18:15:46' +%s, and so on.
        for (text, ns) in [
            ("1970-01-01 00:00:00", 0),
            ("2023-11-16 18:15:46.6805900", 1_700_158_546_680_590_000),
            ("2024-02-29T23:59:59.999999999", 1_709_251_199_999_999_999),
            ("2024-05-10 00:00:00.009930+00:00", 1_715_299_200_009_930_000),
            ("2024-05-10 02:00:00+02:00", 1_715_299_200_000_000_000),
            ("2000-03-01 00:00:00Z", 951_868_800_000_000_000),
            ("2100-03-01 00:00:00", 4_107_542_400_000_000_000),
        ] {
            assert_eq!(date_time(text.as_bytes()), Some(ns), "{text}");
        }
        for text in [
            "",
            "2023-11-16",
            "2023-11-16 18:15",
            "2023-11-16 24:00:00",
            "2023-11-16 18:60:00",
            "2023-11-31 18:00:00",
            "2023-02-29 18:00:00",
            "2100-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-00-01 00:00:00",
            "1969-12-31 23:59:59",
            "2023-11-16 18:15:46.",
            "2023-11-16 18:15:46.1234567890",
            "2023-11-16 18:15:46 UTC",
            "2023/11/16 18:15:46",
            "9999-12-31 23:59:59",
            "1970-01-01 00:00:00+01:00",
        ] {
            assert_eq!(date_time(text.as_bytes()), None, "{text}");
        }
    }
}
