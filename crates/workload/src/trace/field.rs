//! Fields to numbers, exactly: decimal text to integers, and times to nanoseconds, without floating
//! point in between.

use super::error::Problem;

/// A count: digits, which a fraction of zeros may follow (tables that once had gaps write `12.0`).
#[inline]
pub(super) fn count(field: &str) -> Result<u64, Problem> {
    let field = field.trim_ascii();
    let mut value = 0u64;
    for (i, byte) in field.bytes().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return slow_count(value, i, field);
        }
        value = match value.checked_mul(10).and_then(|v| v.checked_add(u64::from(digit))) {
            Some(value) => value,
            None => return Err(Problem::TooLarge { value: u64::MAX, most: u64::MAX }),
        };
    }
    if field.is_empty() { Err(Problem::Missing) } else { Ok(value) }
}

/// As [`count`], within 32 bits.
#[inline]
pub(super) fn tokens(field: &str) -> Result<u32, Problem> {
    narrow(count(field)?)
}

pub(super) fn narrow(value: u64) -> Result<u32, Problem> {
    u32::try_from(value).map_err(|_| Problem::TooLarge { value, most: u64::from(u32::MAX) })
}

/// A count of which the first `digits` bytes are digits of `value`.
#[cold]
fn slow_count(value: u64, digits: usize, field: &str) -> Result<u64, Problem> {
    match field[digits..].strip_prefix('.') {
        Some(fraction) if digits > 0 && fraction.bytes().all(|b| b == b'0') => Ok(value),
        Some(fraction) if digits > 0 && fraction.bytes().all(|b| b.is_ascii_digit()) => {
            Err(Problem::NotWhole)
        }
        _ => Err(not_a_number(field)),
    }
}

/// A number of units of `unit_ns` nanoseconds, as nanoseconds rounded to the nearest: `12`, `0.5`,
/// `1e-05`.
pub(super) fn nanoseconds(field: &str, unit_ns: u64) -> Result<u64, Problem> {
    let field = field.trim_ascii();
    if field.is_empty() {
        return Err(Problem::Missing);
    }
    let (mantissa, exponent) = match field.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(not_a_number(field));
            }
            // Beyond these the value is zero or too large, whatever the mantissa.
            let size = digits.parse::<i32>().unwrap_or(999).min(999);
            (mantissa, if exponent.starts_with('-') { -size } else { size })
        }
        None => (field, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = 0u128;
    // The value is `digits * 10^scale`, cut after the digits that can matter.
    let mut scale = exponent;
    let (mut seen, mut dropped) = (false, 0i32);
    for (byte, is_fraction) in
        whole.bytes().map(|b| (b, false)).chain(fraction.bytes().map(|b| (b, true)))
    {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(not_a_number(field));
        }
        seen = true;
        if digits < 10u128.pow(26) {
            digits = digits * 10 + u128::from(digit);
            scale -= i32::from(is_fraction);
        } else {
            dropped += i32::from(!is_fraction);
        }
    }
    if !seen {
        return Err(not_a_number(field));
    }
    scaled(digits, scale.saturating_add(dropped), unit_ns)
}

/// `digits * 10^scale * unit_ns`, rounded to the nearest. `digits` is below 10^27.
fn scaled(digits: u128, scale: i32, unit_ns: u64) -> Result<u64, Problem> {
    let too_large = Problem::TooLarge { value: u64::MAX, most: u64::MAX };
    // Below 10^27 * 10^10, which 128 bits hold.
    debug_assert!(unit_ns <= 10_000_000_000);
    let value = digits * u128::from(unit_ns);
    let value = match scale {
        _ if value == 0 => 0,
        ..=-39 => 0,
        -38..=-1 => {
            let by = 10u128.pow(scale.unsigned_abs());
            value / by + u128::from(value % by >= by.div_ceil(2))
        }
        0..=38 => value.checked_mul(10u128.pow(scale as u32)).ok_or(too_large.clone())?,
        _ => return Err(too_large),
    };
    u64::try_from(value).map_err(|_| too_large)
}

/// Why a field is no number.
#[cold]
fn not_a_number(field: &str) -> Problem {
    let lower = field.to_ascii_lowercase();
    let (negative, digits) = match lower.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, lower.strip_prefix('+').unwrap_or(&lower)),
    };
    match digits {
        "nan" | "none" | "null" | "na" | "n/a" => Problem::NaN,
        "inf" | "infinity" => Problem::Infinite,
        "" => Problem::Missing,
        _ if negative && digits.parse::<f64>().is_ok() => Problem::Negative,
        _ => Problem::NotANumber,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(count("0"), Ok(0));
        assert_eq!(count(" 4808 "), Ok(4808));
        assert_eq!(count("12.0"), Ok(12));
        assert_eq!(count("18446744073709551615"), Ok(u64::MAX));
        for (field, problem) in [
            ("", Problem::Missing),
            ("12.5", Problem::NotWhole),
            ("-3", Problem::Negative),
            ("nan", Problem::NaN),
            ("NaN", Problem::NaN),
            ("-inf", Problem::Infinite),
            ("12x", Problem::NotANumber),
            ("1e3", Problem::NotANumber),
            (".5", Problem::NotANumber),
            ("1 2", Problem::NotANumber),
            ("18446744073709551616", Problem::TooLarge { value: u64::MAX, most: u64::MAX }),
        ] {
            assert_eq!(count(field), Err(problem), "{field:?}");
        }
        assert!(matches!(tokens("4294967296"), Err(Problem::TooLarge { .. })));
    }

    #[test]
    fn times() {
        const S: u64 = 1_000_000_000;
        for (field, unit, ns) in [
            ("0", S, 0),
            ("5.0", S, 5 * S),
            ("0.5", S, S / 2),
            ("1.0000000004", S, S),
            ("1.0000000005", S, S + 1),
            ("1e-05", S, 10_000),
            ("1.5E+2", S, 150 * S),
            ("27482", 1_000_000, 27_482_000_000),
            ("0.1", 1_000_000, 100_000),
            ("1e-400", S, 0),
            ("0.00000000000000000000000000000000000000000000000001", S, 0),
            ("3.14159265358979323846264338327950288419716939937510", S, 3_141_592_654),
            ("123456789.00000000000000000000000000000001", S, 123_456_789 * S),
            ("46926808", 1, 46_926_808),
        ] {
            assert_eq!(nanoseconds(field, unit), Ok(ns), "{field:?}");
        }
        for (field, problem) in [
            ("", Problem::Missing),
            (".", Problem::NotANumber),
            ("-0.5", Problem::Negative),
            ("nan", Problem::NaN),
            ("inf", Problem::Infinite),
            ("1e", Problem::NotANumber),
            ("1e5x", Problem::NotANumber),
            ("1.2.3", Problem::NotANumber),
            ("1e999999999999", Problem::TooLarge { value: u64::MAX, most: u64::MAX }),
            ("1e300", Problem::TooLarge { value: u64::MAX, most: u64::MAX }),
            (
                "99999999999999999999999999999999999999999999",
                Problem::TooLarge { value: u64::MAX, most: u64::MAX },
            ),
        ] {
            assert_eq!(nanoseconds(field, S), Err(problem), "{field:?}");
        }
    }
}
