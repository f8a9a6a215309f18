"""The part of the chart's schema that Magnetar's settings give: their names, types and bounds."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from magnetar.runtime.settings.declarations import Settings

SCHEMA = Path(__file__).resolve().parents[2] / "k8s" / "chart" / "values.schema.json"


def chart_schema() -> str:
    """The schema of the chart's values, with the settings as they are declared now."""
    schema: dict[str, Any] = json.loads(SCHEMA.read_text())
    schema["properties"]["settings"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {item.metadata["name"]: _setting(item) for item in dataclasses.fields(Settings)},
    }
    return json.dumps(schema, indent=2) + "\n"


def _setting(item: "dataclasses.Field[Any]") -> dict[str, Any]:
    meta = item.metadata
    if meta["choices"]:
        return {"enum": list(meta["choices"])}
    if isinstance(item.default, bool):
        return {"type": "boolean"}
    if isinstance(item.default, int | float):
        found: dict[str, Any] = {"type": "integer" if isinstance(item.default, int) else "number"}
        if meta["minimum"] is not None:
            found |= {"minimum": meta["minimum"], "maximum": meta["maximum"]}
        return found
    return {"type": "string", "pattern": "^[^\\n]*$"}
