//! Fault plans: lists of rules, written as a line or as TOML.

use std::fmt;
use std::str::FromStr;

use crate::error::PlanError;
use crate::rule::Rule;
use crate::verdict::MAX_RULES;

/// A fault plan: a list of rules.
///
/// In a line, semicolons separate the rules, and commas the words of a rule:
/// `verb=ibv_reg_mr,errno=ENOMEM,count=1; drop,p=0.01`. `Display` writes such a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    rules: Vec<Rule>,
}

/// The words of a rule, each with its value if it has one.
type RuleSettings = Vec<(String, Option<String>)>;

impl Plan {
    /// Parses a TOML document of `[[rule]]` tables, whose keys are the words of a line:
    ///
    /// ```
    /// let plan = faults::Plan::from_toml("[[rule]]\nverb = 'ibv_reg_mr'\nerrno = 'ENOMEM'\n[[rule]]\ndrop = true\np = 0.01")?;
    /// assert_eq!(plan.to_string(), "errno=ENOMEM,verb=ibv_reg_mr; drop,p=0.01");
    /// # Ok::<(), faults::PlanError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the text is no plan; the error names the rule.
    pub fn from_toml(text: &str) -> Result<Self, PlanError> {
        let wrong = |reason: &str| PlanError::InvalidToml(reason.to_owned());
        let document: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| PlanError::InvalidToml(error.message().to_owned()))?;
        if let Some(key) = document.keys().find(|key| *key != "rule") {
            return Err(PlanError::InvalidToml(format!(
                "{key:?} is unknown; there is only rule"
            )));
        }
        let rules = match document.get("rule") {
            None => &[][..],
            Some(rules) => rules
                .as_array()
                .ok_or_else(|| wrong("rule is not a list of tables"))?,
        };
        let mut all = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            let table = rule
                .as_table()
                .ok_or_else(|| wrong("a rule is not a table"))?;
            let words = table
                .iter()
                .map(|(key, value)| setting_from_toml(key, value));
            let words: Result<RuleSettings, String> = words.collect();
            all.push(words.map_err(|reason| PlanError::InvalidRule {
                number: at + 1,
                text: table.keys().cloned().collect::<Vec<_>>().join(","),
                reason,
            })?);
        }
        Self::from_rule_settings(&all)
    }

    fn from_rule_settings(all: &[RuleSettings]) -> Result<Self, PlanError> {
        match all.len() {
            0 => return Err(PlanError::Empty),
            1..=MAX_RULES => {}
            many => return Err(PlanError::TooManyRules(many)),
        }
        let rules = all.iter().enumerate().map(|(at, words)| {
            Rule::from_settings(words).map_err(|reason| PlanError::InvalidRule {
                number: at + 1,
                text: format_rule_settings(words),
                reason,
            })
        });
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the rules of the plan, in the order of the plan.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(crate) fn into_rules(self) -> Vec<Rule> {
        self.rules
    }
}

/// Converts a key and a value of TOML to a word of a rule.
fn setting_from_toml(key: &str, value: &toml::Value) -> Result<(String, Option<String>), String> {
    let value = match value {
        toml::Value::Boolean(true) => None,
        toml::Value::String(text) => Some(text.trim().to_owned()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        _ => return Err(format!("{key} is neither a text nor a number nor true")),
    };
    Ok((key.trim().to_owned(), value))
}

/// Formats the words of a rule as a line, for messages.
fn format_rule_settings(words: &RuleSettings) -> String {
    let words = words.iter().map(|(word, value)| match value {
        Some(value) => format!("{word}={value}"),
        None => word.clone(),
    });
    words.collect::<Vec<_>>().join(",")
}

impl FromStr for Plan {
    type Err = PlanError;

    /// Parses a plan in a line.
    fn from_str(text: &str) -> Result<Self, PlanError> {
        let rules = text.split([';', '\n']).map(str::trim);
        let all: Vec<RuleSettings> = rules
            .filter(|rule| !rule.is_empty())
            .map(|rule| rule.split(',').map(parse_line_setting).collect())
            .collect();
        Self::from_rule_settings(&all)
    }
}

fn parse_line_setting(text: &str) -> (String, Option<String>) {
    match text.split_once('=') {
        Some((word, value)) => (word.trim().to_owned(), Some(value.trim().to_owned())),
        None => (text.trim().to_owned(), None),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, rule) in self.rules.iter().enumerate() {
            if at > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{rule}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_can_be_said_in_a_line_and_comes_back_from_it() {
        let line = "drop,p=0.01; duplicate,every=7; corrupt,qpn=0x8000; ecn,peer=10.0.0.2; delay=1ms..2ms,opcode=SEND; \
                    reorder=50us,p=0.5; rate=10Mbit,direction=receive; partition=127.0.0.1/127.0.0.2,from=1s,for=2s; \
                    verb=ibv_reg_mr,errno=ENOMEM,after=1,count=1; status=REM_ACCESS_ERR,qp=1; rnr=3ms; late=1ms; \
                    event=IBV_EVENT_QP_FATAL,verb=ibv_post_send; link-down=2s,from=1s; link-down; pause=100ms,opcode=RECV; \
                    status=LOC_LEN_ERR,opcode=RECV; verb=any,errno=eio";
        let plan: Plan = line.parse().unwrap();
        assert_eq!(plan.rules().len(), 18);
        assert_eq!(plan.to_string().parse(), Ok(plan.clone()));
        assert_eq!(plan.to_string().replace("; ", "\n").parse(), Ok(plan));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_possible() {
        for (line, expected) in [
            ("", "no rule"),
            ("; ;", "no rule"),
            ("p=0.5", "no action; actions are drop"),
            ("drp", "\"drp\" is no action"),
            ("drop=1", "p, every and count"),
            ("drop,duplicate", "two actions"),
            ("drop,p=2", "a probability from 0 to 1"),
            ("drop,p=0.1,p=0.2", "p twice"),
            ("drop,colour=red", "\"colour\" is unknown"),
            ("drop,verb=ibv_reg_mr", "verb means nothing"),
            ("delay", "needs a value"),
            ("delay=5", "2.5ms"),
            ("errno=ENOMEM", "needs the verb"),
            ("errno=ENOMEN,verb=ibv_reg_mr", "ENOMEM"),
            ("errno=ENOMEM,verb=ibv_reg", "ibv_reg_mr"),
            ("status=SUCCESS", "LOC_LEN_ERR"),
            (
                "status=REM_OP_ERR,opcode=RECV",
                "LOC_LEN_ERR or LOC_PROT_ERR",
            ),
            ("rnr=1ms,opcode=RECV", "not for a RECV"),
            ("drop,opcode=RECV", "direction=receive"),
            ("corrupt,opcode=BIND_MW", "no packet"),
            ("status=RETRY_EXC_ERR,opcode=ACK", "only a packet"),
            ("late=1ms,opcode=READ_RESPONSE", "only a packet"),
            ("event=QP_FATAL,opcode=CNP", "only a packet"),
            ("event=PORT_ERR,after=1", "after means nothing"),
            (
                "event=PORT_ERR,verb=any,opcode=SEND",
                "both verb and opcode",
            ),
            ("drop,from=2s,until=1s", "not later"),
            ("drop,from=2s,until=3s,for=1s", "both until and for"),
            ("partition=a/b", "two IP addresses"),
            ("drop,qpn=0", "queue pair number"),
            ("drop,count=0", "from 1 on"),
            ("drop,=1", "is empty"),
            ("rate=0bit", "10Mbit"),
        ] {
            let error = line.parse::<Plan>().expect_err(line).to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        let many = vec!["drop"; MAX_RULES + 1].join(";");
        assert_eq!(
            many.parse::<Plan>(),
            Err(PlanError::TooManyRules(MAX_RULES + 1))
        );
    }

    #[test]
    fn toml_has_the_same_words() {
        let toml = "[[rule]]\nverb = 'ibv_reg_mr'\nerrno = 'ENOMEM'\ncount = 1\n[[rule]]\ndrop = true\np = 0.25\nqpn = 0x11";
        let plan = Plan::from_toml(toml).unwrap();
        let line: Plan = "count=1,errno=ENOMEM,verb=ibv_reg_mr; drop,p=0.25,qpn=17"
            .parse()
            .unwrap();
        assert_eq!(plan, line);
        for (toml, expected) in [
            ("", "no rule"),
            ("rule = 1", "not a list"),
            ("rule = [1]", "not a table"),
            ("other = 1", "unknown"),
            ("[[rule]]\ndrop = false", "neither a text"),
            ("[[rule]]\ndrop = 'a,b'", "comma"),
            ("[[rule", "not TOML"),
        ] {
            let error = Plan::from_toml(toml).expect_err(toml).to_string();
            assert!(error.contains(expected), "{toml}: {error}");
        }
    }
}
