//! The time that templates print, as data.

/// A moment and the offset of the local clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub unix_seconds: i64,
    /// Seconds to add for local time.
    pub offset_seconds: i32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment on the calendar.
struct Civil {
    year: i64,
    /// 1 to 12.
    month: u32,
    /// 1 to 31.
    day: u32,
    /// 1 to 366.
    day_of_year: u32,
    /// 0 is Sunday.
    weekday: usize,
    hour: u32,
    minute: u32,
    second: u32,
}

impl LocalTime {
    /// The calendar by counting days in 400-year cycles that start on 1 March.
    fn civil(self) -> Option<Civil> {
        let local = self.unix_seconds.checked_add(i64::from(self.offset_seconds))?;
        let (days, seconds) = (local.div_euclid(86_400), local.rem_euclid(86_400) as u32);
        let shifted = days.checked_add(719_468)?;
        let (cycle, day_of_cycle) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_cycle = (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524
            - day_of_cycle / 146_096)
            / 365;
        let day_from_march =
            day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let day = (day_from_march - (153 * month_from_march + 2) / 5 + 1) as u32;
        let month =
            (if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 })
                as u32;
        let year = cycle * 400 + year_of_cycle + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize - 1];
        Some(Civil {
            year,
            month,
            day,
            day_of_year: before + day + u32::from(leap && month > 2),
            weekday: (days + 4).rem_euclid(7) as usize,
            hour: seconds / 3600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        })
    }

    /// Formats the time as Python's `strftime` does in the C locale.
    ///
    /// # Errors
    /// A sentence that names the directive that is not known.
    pub(super) fn format(self, format: &str) -> Result<String, String> {
        let time = self.civil().ok_or("the time is out of range")?;
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next().ok_or("the format ends with %")?;
            let unpadded = directive == '-';
            if unpadded {
                directive = chars.next().ok_or("the format ends with %-")?;
            }
            let piece = self.directive(&time, directive)?;
            let numeric = piece.bytes().all(|byte| byte.is_ascii_digit() || byte == b' ');
            if unpadded && numeric {
                let bare = piece.trim_start_matches([' ', '0']);
                out.push_str(if bare.is_empty() { "0" } else { bare });
            } else {
                out.push_str(&piece);
            }
        }
        Ok(out)
    }

    fn directive(self, time: &Civil, directive: char) -> Result<String, String> {
        let month = MONTHS[time.month as usize - 1];
        let day = DAYS[time.weekday];
        let hour12 = (time.hour + 11) % 12 + 1;
        Ok(match directive {
            'Y' => time.year.to_string(),
            'y' => format!("{:02}", time.year.rem_euclid(100)),
            'm' => format!("{:02}", time.month),
            'd' => format!("{:02}", time.day),
            'e' => format!("{:2}", time.day),
            'j' => format!("{:03}", time.day_of_year),
            'H' => format!("{:02}", time.hour),
            'I' => format!("{hour12:02}"),
            'M' => format!("{:02}", time.minute),
            'S' => format!("{:02}", time.second),
            'p' => if time.hour < 12 { "AM" } else { "PM" }.to_string(),
            'B' => month.to_string(),
            'b' | 'h' => month[..3].to_string(),
            'A' => day.to_string(),
            'a' => day[..3].to_string(),
            'w' => time.weekday.to_string(),
            'F' => format!("{}-{:02}-{:02}", time.year, time.month, time.day),
            'T' => format!("{:02}:{:02}:{:02}", time.hour, time.minute, time.second),
            's' => self.unix_seconds.to_string(),
            // A moment without a zone, as Python's now(), prints neither.
            'Z' | 'z' => String::new(),
            'n' => "\n".to_string(),
            't' => "\t".to_string(),
            '%' => "%".to_string(),
            _ => return Err(format!("strftime_now does not know %{directive}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::LocalTime;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // Checked with Python's datetime.
        let cases = [
            (0, "1970-01-01 00:00:00 Thursday 001"),
            (951_782_400, "2000-02-29 00:00:00 Tuesday 060"),
            (951_868_799, "2000-02-29 23:59:59 Tuesday 060"),
            (1_735_689_599, "2024-12-31 23:59:59 Tuesday 366"),
            (1_740_787_200, "2025-03-01 00:00:00 Saturday 060"),
            (4_107_542_400, "2100-03-01 00:00:00 Monday 060"),
            (-1, "1969-12-31 23:59:59 Wednesday 365"),
        ];
        for (unix_seconds, expected) in cases {
            let time = LocalTime { unix_seconds, offset_seconds: 0 };
            assert_eq!(time.format("%Y-%m-%d %H:%M:%S %A %j").unwrap(), expected);
        }
        let evening = LocalTime { unix_seconds: 1_741_204_800 - 3600, offset_seconds: 3 * 3600 };
        assert_eq!(
            evening.format("%d %b %Y, %-I:%M %p|%e|%-d|%-m").unwrap(),
            "05 Mar 2025, 10:00 PM| 5|5|3"
        );
        assert!(evening.format("%Q").unwrap_err().contains("%Q"));
        assert!(LocalTime { unix_seconds: i64::MAX, offset_seconds: 1 }.format("%Y").is_err());
        assert!(LocalTime { unix_seconds: i64::MAX, offset_seconds: 0 }.format("%Y").is_ok());
    }
}
