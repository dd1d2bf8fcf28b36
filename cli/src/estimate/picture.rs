//! The picture of one machine's course as SVG: usage, forecast, and oversubscribable resources.

use std::fmt::Write as _;
use std::time::Duration;

use meseta_estimators::replay::Course;

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 60.0;
/// Points of one line: further points are folded to their highest, since there are no dots to draw them on.
const POINTS_MAX: usize = 1200;
/// The drawn lines and their style.
const DRAWN: [(&str, &str, &str); 3] = [
    ("**slack**, predictor", "slack: foretold peak", "#c0392b"),
    (
        "**slack**, after its caps",
        "slack: everything that is not oversubscribed",
        "#2471a3",
    ),
    (
        "Koordinator batch, last + 0.4 C",
        "Koordinator batch",
        "#999999",
    ),
];

/// Draws the whole file.
pub(super) fn svg(course: &Course, step: Duration) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    frame(&mut text, course, step);
    line(&mut text, &course.used, course.capacity, "#1e8449", 1.0);
    let mut legend = vec![("used by regular work", "#1e8449")];
    for (name, label, colour) in DRAWN {
        if let Some((_, peaks)) = course.peaks.iter().find(|(known, _)| known == name) {
            line(&mut text, peaks, course.capacity, colour, 1.0);
            legend.push((label, colour));
        }
    }
    let mut x = LEFT;
    for (label, colour) in legend {
        let y = HEIGHT - 12.0;
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{y}\">{label}</text>",
            y - 6.0,
            x + 20.0
        );
        x += 240.0;
    }
    text.push_str("</svg>\n");
    text
}

/// Draws the axes: processors upwards, days to the right.
fn frame(text: &mut String, course: &Course, step: Duration) {
    for quarter in 0..=4 {
        let share = f64::from(quarter) / 4.0;
        let (y, cpus) = (height(share), share * course.capacity);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"4\" y=\"{:.1}\">{cpus:.1} cpu</text>",
            y + 4.0
        );
    }
    let days = step.as_secs_f64() * count(course.used.len()) / 86_400.0;
    for tenth in 0..10 {
        let share = f64::from(tenth) / 10.0;
        let x = LEFT + share * (WIDTH - LEFT);
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{:.1}\">day {:.1}</text>",
            HEIGHT - BOTTOM + 18.0,
            share * days
        );
    }
}

fn line(text: &mut String, values: &[f64], capacity: f64, colour: &str, width: f64) {
    let fold = values.len().div_ceil(POINTS_MAX).max(1);
    let points = values.chunks(fold).enumerate().map(|(index, chunk)| {
        let highest = chunk.iter().copied().fold(0.0, f64::max);
        let share = count(index * fold) / count(values.len().max(1));
        let value = if capacity > 0.0 {
            highest / capacity
        } else {
            0.0
        };
        format!("{:.1},{:.1}", LEFT + share * (WIDTH - LEFT), height(value))
    });
    let points: Vec<String> = points.collect();
    let _ = writeln!(
        text,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" points=\"{}\"/>",
        points.join(" ")
    );
}

fn height(share: f64) -> f64 {
    TOP + (1.0 - share.clamp(0.0, 1.0)) * (HEIGHT - TOP - BOTTOM)
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_lines_stay_inside_the_frame() {
        let course = Course {
            capacity: 4.0,
            used: vec![1.0, 2.0, 9.0],
            peaks: vec![
                ("**slack**, predictor".to_owned(), vec![4.0, 3.0, 3.0]),
                ("another".to_owned(), vec![4.0; 3]),
            ],
        };
        let picture = svg(&course, Duration::from_secs(300));
        assert_eq!(picture.matches("<polyline").count(), 2);
        assert!(picture.contains("slack: foretold peak") && !picture.contains("another"));
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        let outside = ["NaN", ",-", "\"-", " -"];
        assert!(
            outside.iter().all(|text| !picture.contains(text)),
            "{picture}"
        );
    }
}
