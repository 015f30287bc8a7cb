//! How much carbon the electricity of places carries: countries by their yearly mean, regions of
//! clouds as their owners publish them. `PROVENANCE.md` beside this file says where it comes from.
//!
//! Yearly means say nothing of hours: whoever places work by the hour needs a series of its own.

/// The electricity of a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// ISO 3166-1 alpha-3 for a country, `provider/region` for a region of a cloud.
    pub code: &'static str,
    /// The country, or the city with its country.
    pub name: &'static str,
    /// The year that the number is of, where the source says.
    pub year: Option<u16>,
    /// Grams of CO2-equivalent a kWh, generation as a whole.
    pub gco2_per_kwh: f64,
}

const TABLE: &str = include_str!("intensity.csv");

/// All places that are known, countries first.
pub fn places() -> impl Iterator<Item = Place> {
    TABLE.lines().skip(1).filter_map(|line| {
        let mut fields = line.split(',');
        Some(Place {
            code: fields.next()?,
            name: fields.next()?,
            year: fields.next()?.parse().ok(),
            gco2_per_kwh: fields.next()?.parse().ok()?,
        })
    })
}

/// The place of this code or name, in upper or lower case.
fn place(name: &str) -> Option<Place> {
    places().find(|p| p.code.eq_ignore_ascii_case(name) || p.name.eq_ignore_ascii_case(name))
}

/// The place of this code or name, or what to say of one that is not in the table, with those that
/// may be meant.
///
/// # Errors
/// No place is called so.
pub fn find_place(name: &str) -> Result<Place, String> {
    if let Some(found) = place(name) {
        return Ok(found);
    }
    let lower = name.to_lowercase();
    let like = places().filter(|p| {
        let own = p.name.to_lowercase();
        !lower.is_empty() && (own.contains(&lower) || lower.contains(&own))
            || p.code.to_lowercase().starts_with(&lower)
    });
    let like: Vec<String> = like.take(5).map(|p| format!("{} ({})", p.code, p.name)).collect();
    let hint = match like.as_slice() {
        [] => "SWE for Sweden, or gcp/europe-north1".to_string(),
        like => like.join(", "),
    };
    Err(format!(
        "{name:?} is no country's ISO 3166-1 alpha-3 code or name and no region; try {hint}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_place() {
        let all: Vec<Place> = places().collect();
        assert_eq!(all.len(), TABLE.lines().count() - 1);
        for p in &all {
            assert!(p.gco2_per_kwh.is_finite() && p.gco2_per_kwh > 0.0, "{p:?}");
            assert_eq!(all.iter().filter(|other| other.code == p.code).count(), 1, "{p:?}");
        }
    }

    #[test]
    fn places_are_found_by_code_and_by_name() {
        let sweden = place("swe").expect("it is in the table");
        assert_eq!((sweden.name, sweden.year, sweden.gco2_per_kwh), ("Sweden", Some(2023), 40.695));
        assert_eq!(place("sweden"), Some(sweden));
        assert_eq!(place("gcp/europe-north1").expect("it is there").gco2_per_kwh, 46.0);
        assert_eq!(place("Atlantis"), None);
    }
}
