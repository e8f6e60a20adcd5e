//! Whether the machine runs on its battery.

use std::{fs, path::Path};

/// Where Linux describes mains and batteries. Other systems count as on mains.
const SUPPLIES: &str = "/sys/class/power_supply";

/// Whether a battery of the machine is being discharged.
pub fn is_on_battery() -> bool {
    is_discharged_in(Path::new(SUPPLIES))
}

fn is_discharged_in(supplies: &Path) -> bool {
    let Ok(supplies) = fs::read_dir(supplies) else { return false };
    supplies.flatten().any(|supply| {
        let says = |file: &str, text: &str| {
            fs::read_to_string(supply.path().join(file)).is_ok_and(|written| written.trim() == text)
        };
        // A mouse has a battery, too.
        says("type", "Battery") && says("status", "Discharging") && !says("scope", "Device")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_battery_of_the_machine_that_is_discharged_counts() {
        let check = |supplies: &[(&str, &[(&str, &str)])], expect: bool| {
            let dir = tempfile::tempdir().unwrap();
            for (name, files) in supplies {
                let folder = dir.path().join(name);
                fs::create_dir(&folder).unwrap();
                files
                    .iter()
                    .for_each(|(file, text)| fs::write(folder.join(file), format!("{text}\n")).unwrap());
            }
            assert_eq!(is_discharged_in(dir.path()), expect, "{supplies:?}");
        };
        check(&[], false);
        check(&[("AC", &[("type", "Mains"), ("online", "1")])], false);
        check(&[("BAT0", &[("type", "Battery"), ("status", "Charging")])], false);
        check(&[("BAT0", &[("type", "Battery"), ("status", "Discharging")])], true);
        check(&[("hidpp", &[("type", "Battery"), ("status", "Discharging"), ("scope", "Device")])], false);
        assert!(!is_discharged_in(Path::new("/nowhere/at/all")));
    }
}
