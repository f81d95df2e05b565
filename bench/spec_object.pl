# Reads Spec/object.pm of a SPEC CPU program and prints what bench/spec needs, as JSON: names, sources, flags, tolerances and commands.
#
# Usage: perl spec_object.pl OBJECT.PM SIZE EXECUTABLE, in the folder with the inputs. object.pm is a Perl file that SPEC's tools evaluate:
# its variables describe the program, and its function `invoke` returns the commands for the inputs. It runs with the rights of the caller:
# use only a tree that you trust.

use strict;
use warnings;
use JSON::PP;

# What `invoke` may ask of the benchmark.
package Benchmark;

our $AUTOLOAD;

sub size             { $_[0]{size} }
sub name             { $main::benchname }
sub num              { $main::benchnum }
sub benchmark        { "$main::benchnum.$main::benchname" }
sub exe_file         { $_[0]{executable} }
sub exe_files        { ($_[0]{executable}) }
sub input_files_base { @{ $_[0]{inputs} } }
sub input_files      { @{ $_[0]{inputs} } }
sub input_files_abs  { @{ $_[0]{inputs} } }
sub accessor_nowarn  { undef }

sub AUTOLOAD {
    my $name = $AUTOLOAD;
    $name =~ s/.*:://;
    return if $name eq 'DESTROY';
    die "its function `invoke` calls `$name`, which bench/spec does not have\n";
}

package main;

# The lines of a file, as SPEC's own function.
sub read_file {
    my ($name) = @_;
    open(my $file, '<', $name) or return ();
    return <$file>;
}

# All files of the current folder and its folders.
sub files {
    my ($folder) = @_;
    my @found;
    opendir(my $handle, length $folder ? $folder : '.') or die "cannot list `$folder`: $!\n";
    for my $name (sort grep { !/^\.\.?$/ } readdir $handle) {
        my $path = length $folder ? "$folder/$name" : $name;
        push @found, -d $path ? files($path) : $path;
    }
    return @found;
}

my ($object, $size, $executable) = @ARGV;
our ($benchnum, $benchname, $exename, $benchlang, $abstol, $reltol, @sources, %sources);
our ($bench_flags, $bench_cflags, $bench_cxxflags, $bench_fflags, $bench_fppflags);
do {
    local $@;
    no strict;
    no warnings;
    open(my $file, '<', $object) or die "cannot read $object: $!\n";
    my $text = join '', <$file>;
    # Files of CPU2000 declare nothing, so strictness is off unless the file enables it.
    eval "no strict; no warnings;\n#line 1 \"$object\"\n$text" or die $@ || "$object does not end with a true value\n";
};
my $self = bless { size => $size, executable => $executable, inputs => [files('')] }, 'Benchmark';
my @commands = invoke($self);
my @wanted   = @sources ? @sources : $exename && $sources{$exename} ? @{ $sources{$exename} } : ();
my %described = (
    number   => $benchnum,
    name     => $benchname,
    executable => $exename || $benchname,
    language => $benchlang || '',
    sources  => [map { "$_" } @wanted],
    flags    => { all => $bench_flags, c => $bench_cflags, cxx => $bench_cxxflags, fortran => $bench_fflags, preprocessor => $bench_fppflags },
    abstol   => $abstol,
    reltol   => $reltol,
    # Texts only: object.pm may have numbers among the arguments.
    commands => [
        map {
            my $one = $_;
            +{ args => [map { "$_" } @{ $one->{args} || [] }], map { $_ => defined $one->{$_} ? "$one->{$_}" : undef } qw(command input output error) }
        } @commands
    ],
);
print JSON::PP->new->canonical->allow_nonref->encode(\%described), "\n";
