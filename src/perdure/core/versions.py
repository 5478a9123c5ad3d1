"""What is different between two definitions of an agent, in words."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.specs import AgentSpec, ToolSpec


def changes_between(old: AgentSpec, new: AgentSpec) -> list[str]:
    """One line for each difference, as a person would want to hear it."""
    before = {tool.name: tool for tool in old.tools}
    after = {tool.name: tool for tool in new.tools}
    lines = [f"the tool {name} is gone" for name in before if name not in after]
    lines += [f"the tool {name} is new" for name in after if name not in before]
    for name, tool in before.items():
        if name in after and (fields := changes_of_tool(tool, after[name])):
            lines.append(f"the tool {name} has changed ({', '.join(fields)})")
    for field in AgentSpec.__struct_fields__:
        if field not in ("tools", "name") and getattr(old, field) != getattr(new, field):
            lines.append(f"its {field.replace('_', ' ')} changed")
    return lines


def changes_of_tool(old: ToolSpec, new: ToolSpec) -> list[str]:
    """The fields in which a tool differs; whether it is deferred, and where it runs, is no matter of what it does."""
    new = replace(new, deferred=old.deferred, queue=old.queue)
    return [field for field in ToolSpec.__struct_fields__ if getattr(old, field) != getattr(new, field)]
