#!/usr/bin/env perl
# A host in plain Perl: protocol 1 of docs/hosts.md, with what comes with every Perl. `bugle host check` accepts it.
use strict;
use warnings;
use IO::Socket::UNIX;
use JSON::PP;

my $json = JSON::PP->new->utf8->allow_nonref->canonical;
my $worker = IO::Socket::UNIX->new(Peer => $ENV{BUGLE_HOST}) or die "cannot reach the worker: $!\n";
my (%running, %waiting, $calls);    # jobs that run until they are cancelled; calls that wait for a reply

sub tell_worker { print {$worker} $json->encode({@_}), "\n"; $worker->flush }
sub answer { my ($job, $type, @rest) = @_; tell_worker(type => $type, id => $job->{id}, claim => $job->{claim}, @rest) }
sub call { my ($then, @message) = @_; $waiting{++$calls} = $then; tell_worker(@message, call => "$calls") }

# What each command does. A job is answered here, or later when a reply or a cancellation comes.
my %commands = (
    'check.echo' => sub { my $job = shift; answer($job, 'done', result => $job->{payload}) },
    'check.fail' => sub {
        my $job = shift;
        my %fields = %{$job->{payload}};
        my @known = grep { exists $fields{$_} } qw(error code retryable retry_after);
        answer($job, 'fail', map { ($_ => $fields{$_}) } @known);
    },
    'check.stop' => sub { my $job = shift; $running{$job->{id}} = $job },
    'check.snooze' => sub { my $job = shift; answer($job, 'snooze', delay => $job->{payload}{delay}) },
    'check.progress' => sub {
        my $job = shift;
        tell_worker(type => 'progress', id => $job->{id}, %{$job->{payload}});
        answer($job, 'done');
    },
    'check.step' => sub {
        my $job = shift;
        call(sub {
            my $step = shift->{value};
            return answer($job, 'done', result => $step->{output}) if $step->{done};
            my $output = $job->{payload}{output};    # the work is done here, once
            call(sub { answer($job, 'done', result => $output) },
                type => 'step.put', id => $job->{id}, name => 'check', output => $output);
        }, type => 'step.get', id => $job->{id}, name => 'check');
    },
);

# What the worker says. Messages and fields that this host does not know are ignored.
my %messages = (
    job => sub { my $job = shift; ($commands{$job->{command}} // \&unknown)->($job) },
    cancel => sub { my $job = delete $running{shift->{id}}; answer($job, 'cancelled') if $job },
    ping => sub { tell_worker(type => 'pong') },
    reply => sub { my $reply = shift; my $then = delete $waiting{$reply->{call}}; $then->($reply) if $then },
    error => sub { my $error = shift; print STDERR "the worker reports $error->{code}: $error->{error}\n" },
);
sub unknown { my $job = shift; answer($job, 'fail', error => "there is no $job->{command} here") }

my %hello = (type => 'hello', protocol => 1, concurrency => 8, language => "perl $^V");
tell_worker(%hello, commands => [sort keys %commands]);
while (my $line = <$worker>) {
    my $message = $json->decode($line);
    my $handler = $messages{$message->{type}};
    $handler->($message) if $handler;
}
# the worker has closed the connection: exit
