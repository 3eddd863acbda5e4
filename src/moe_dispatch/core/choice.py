"""A Choice names a dispatcher and its knobs: the variable under test, and what `emit` turns into configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

KnobValue = int | float | str | bool | None


class Choice(BaseModel):
    """One dispatcher with the knobs that were set explicitly (absent knobs keep the backend's default)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dispatcher: str
    knobs: dict[str, KnobValue] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """Short name for tables: `hierarchical(chunks=8)`."""
        inner = ", ".join(f"{key}={value}" for key, value in sorted(self.knobs.items()))
        return f"{self.dispatcher}({inner})" if inner else self.dispatcher
